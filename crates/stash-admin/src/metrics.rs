//! Metrics for Prometheus, and what requests cost: options that the long-running commands share.
//!
//! The recorder is installed before the stash is opened, since handles are made then; so [`MetricsArgs::listen`] comes
//! first and [`Endpoint::watch`] after. Without `--metrics-listen` nothing is recorded, and measuring costs next to
//! nothing. Nothing secret is told, but whoever reaches the address reads it: keep it to the machine, or to a network of
//! your own.

use std::net::{SocketAddr, TcpListener};

use stash::{Prices, Stash};

use crate::failure::Refusal;

/// What is measured, where it is told, and at which prices.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct MetricsArgs {
    /// Tell metrics to Prometheus at this address while this runs, such as 127.0.0.1:9464. The demo's own processes take
    /// the three ports above it: replica a, replica b, the consumer.
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Metrics")]
    pub metrics_listen: Option<SocketAddr>,
    /// What requests cost, for the summary: put (a thousand PUT or LIST), get (a thousand GET), storage (a GB for a month),
    /// egress (a GB read), such as put=0.005,get=0.0004,storage=0.023,egress=0.09. What is not named keeps its default,
    /// the example of a large provider.
    #[arg(long, value_name = "NAME=AMOUNT,…", help_heading = "Metrics")]
    pub price: Option<Prices>,
}

impl MetricsArgs {
    /// The prices.
    pub fn prices(&self) -> Prices {
        self.price.unwrap_or_default()
    }

    /// Listens where that was asked for. To be called before the stash is opened, on a runtime.
    pub fn listen(&self) -> anyhow::Result<Endpoint> {
        let endpoint = Endpoint::at(self.metrics_listen)?;
        if let Some(address) = self.metrics_listen {
            eprintln!("metrics: http://{address}/metrics");
        }
        Ok(endpoint)
    }
}

/// The address `above` ports above the one that was given.
pub fn port_above(address: SocketAddr, above: u16) -> Result<SocketAddr, Refusal> {
    let port = address.port().checked_add(above).ok_or_else(|| {
        Refusal::usage(format!("--metrics-listen {address}: there are no {above} ports above it"))
    })?;
    Ok(SocketAddr::new(address.ip(), port))
}

/// Refuses an address that cannot be listened at.
pub fn check_free(address: SocketAddr) -> Result<(), Refusal> {
    if address.port() == 0 {
        return Err(Refusal::usage(format!(
            "--metrics-listen {address}: name a port, or nobody knows where to read"
        )));
    }
    TcpListener::bind(address).map(drop).map_err(|error| taken(address, &error.to_string()))
}

fn taken(address: SocketAddr, why: &str) -> Refusal {
    Refusal::fix_call(format!(
        "--metrics-listen {address}: {why}; another process has the port, or the machine has no such address: name another"
    ))
}

#[cfg(feature = "prometheus")]
pub use prometheus::Endpoint;

#[cfg(feature = "prometheus")]
mod prometheus {
    use std::time::Duration;

    use anyhow::Context;
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
    use metrics_util::MetricKindMask;
    use stash::{METRICS, MetricKind, describe_metrics};
    use tokio::task::JoinSet;

    use super::{SocketAddr, Stash, check_free, taken};

    /// How often the catalog is looked at for the gauges.
    const LOOK_EVERY: Duration = Duration::from_secs(5);
    /// A gauge that was not set for so long is forgotten: its sink or consumer is gone.
    const GAUGES_KEPT: Duration = Duration::from_secs(60);

    /// Buckets of durations, in seconds: from a read of the embedded catalog to a PUT that is tried for a minute.
    const DURATIONS: [f64; 16] = [
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
        60.0,
    ];
    /// Buckets of counts.
    const COUNTS: [f64; 9] = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 1024.0];

    /// Listens for Prometheus as long as it lives.
    #[derive(Debug)]
    pub struct Endpoint {
        tasks: JoinSet<()>,
        listens: bool,
    }

    impl Endpoint {
        /// Records from now on, and answers at `address`, if there is one.
        pub fn at(address: Option<SocketAddr>) -> anyhow::Result<Endpoint> {
            let mut tasks = JoinSet::new();
            let Some(address) = address else { return Ok(Endpoint { tasks, listens: false }) };
            check_free(address)?;
            let mut builder = PrometheusBuilder::new()
                .with_http_listener(address)
                .idle_timeout(MetricKindMask::GAUGE, Some(GAUGES_KEPT));
            for metric in METRICS.iter().filter(|metric| metric.kind == MetricKind::Histogram) {
                let buckets: &[f64] = if metric.name.ends_with("_seconds") { &DURATIONS } else { &COUNTS };
                builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)?;
            }
            let (recorder, exporter) = builder.build().map_err(|error| taken(address, &error.to_string()))?;
            metrics::set_global_recorder(recorder).ok().context("metrics are recorded already")?;
            describe_metrics();
            tasks.spawn(async move {
                if exporter.await.is_err() {
                    tracing::warn!(%address, "metrics are not told any more: the listener ended");
                }
            });
            Ok(Endpoint { tasks, listens: true })
        }

        /// Looks at the stash now and then, for as long as this lives.
        pub fn watch(&mut self, stash: &Stash) {
            if !self.listens {
                return;
            }
            let stash = stash.clone();
            self.tasks.spawn(async move {
                loop {
                    if let Err(error) = stash.publish().await {
                        tracing::debug!(%error, "the catalog was not looked at for the gauges");
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            });
        }
    }
}

#[cfg(not(feature = "prometheus"))]
mod without {
    use super::{Refusal, SocketAddr, Stash};

    /// Nothing is told in this build.
    #[derive(Debug)]
    pub struct Endpoint;

    impl Endpoint {
        /// Refuses an address.
        pub fn at(address: Option<SocketAddr>) -> anyhow::Result<Endpoint> {
            match address {
                None => Ok(Endpoint),
                Some(_) => Err(Refusal::fix_call(
                    "--metrics-listen: this build tells no metrics; build it with the feature prometheus",
                )
                .into()),
            }
        }

        /// Looks at nothing.
        pub fn watch(&mut self, _: &Stash) {}
    }
}
#[cfg(not(feature = "prometheus"))]
pub use without::Endpoint;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_refused_with_what_to_do() {
        let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = held.local_addr().expect("it has one");
        let error = check_free(address).expect_err("it is taken").to_string();
        assert!(error.contains(&address.to_string()) && error.contains("name another"), "{error}");
        drop(held);
        check_free(address).expect("it is free again");
    }

    #[test]
    fn a_port_has_to_be_named_and_the_demo_needs_three_above_it() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert!(check_free(at(0)).expect_err("none is named").to_string().contains("name a port"));
        assert_eq!(port_above(at(9464), 3).expect("it is there"), at(9467));
        assert!(port_above(at(65533), 3).is_err());
    }
}
