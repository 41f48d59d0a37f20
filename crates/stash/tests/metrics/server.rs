//! A store that speaks HTTP: what is counted and paid is what went over the wire, as a proxy before the server saw it.

use std::{collections::BTreeMap, sync::Arc};

use metrics_util::debugging::DebuggingRecorder;
use stash::{BatchConfig, Catalog, Meters, OpenOptions, Requests, StartAt, StashConfig};
use stash_blob::s3::{S3Config, S3Keys, S3Store};
use stash_catalog::{
    SqliteCatalog,
    testing::{ManualClock, SeededIds},
};
use stash_testkit::{
    proxy::{Call, FaultProxy, Scenario},
    servers,
};

use crate::scene::{Measured, offer, render, spec};

/// What the proxy saw, as it is paid. What it refused by itself is a request like any other. Listings of uploads, and what
/// aborts one, are asked by another client, which tells nobody (docs/adr/0020).
fn seen(proxy: &FaultProxy) -> Requests {
    let tallies: BTreeMap<Call, _> = proxy.tallies();
    let of =
        |calls: &[Call]| calls.iter().filter_map(|call| tallies.get(call)).map(|tally| tally.requests).sum();
    Requests {
        puts: of(&[
            Call::PutObject,
            Call::CreateMultipartUpload,
            Call::UploadPart,
            Call::CompleteMultipartUpload,
        ]),
        gets: of(&[Call::GetObject]),
        heads: of(&[Call::HeadObject]),
        lists: of(&[Call::ListObjectsV2, Call::ListObjects]),
        deletes: of(&[Call::DeleteObject, Call::DeleteObjects]),
        ..Requests::default()
    }
}

#[test]
fn what_is_counted_and_paid_is_what_went_over_the_wire() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let seen = metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let server = servers::ministack().await?;
            let proxy = FaultProxy::start(server).expect("it listens");
            let mut config = S3Config::new(server.new_bucket("metrics").await, "stash");
            config.endpoint = Some(proxy.endpoint());
            config.region = Some(server.region().to_owned());
            config.path_style = true;
            config.keys = Some(S3Keys::new(server.access_key(), server.secret_key()));
            let meters = Meters::new();
            let store = S3Store::open_observed(config, Arc::new(meters.clone())).await.expect("it opens");
            let (clock, ids) = (Arc::new(ManualClock::at(1)), Arc::new(SeededIds::new(3)));
            let catalog = SqliteCatalog::in_memory(clock, ids).await.expect("a catalog");
            let catalog: Arc<dyn Catalog> = Arc::new(catalog);
            let batch = BatchConfig { inline_batch_bytes_max: 2 << 10, ..BatchConfig::default() };
            let stash = OpenOptions::new("test://server")
                .config(StashConfig { batch, ..StashConfig::default() })
                .meters(meters)
                .open_with(Arc::new(store), catalog)
                .await
                .expect("it opens");

            let sink = stash.declare_sink(spec("s")).await.expect("it is declared");
            proxy.set(Scenario::InternalError { percent: 30 }, 11);
            let incarnation = render(&sink, "a").await;
            offer(&incarnation, &[1, 2, 3, 4], 1_000).await;
            let mut subscription = sink.subscribe("reader", StartAt::Beginning).await.expect("it subscribes");
            while subscription.position() < stash::Frontier::at(4) {
                let delivery = subscription.next().await.expect("it is there").expect("not the end");
                let mut reader = delivery.read();
                while reader.next().await.expect("it is read").is_some() {}
                drop(reader);
                subscription.acknowledge(delivery.upper()).await.expect("it is acknowledged");
            }
            drop(incarnation);
            proxy.heal();
            stash.close().await.expect("it closes");
            let sum = stash.requests().into_values().fold(Requests::default(), Requests::and);
            Some((sum, seen(&proxy), proxy.requests()))
        })
    });
    let Some((sum, seen, requests)) = seen else { return };
    let paid = Requests { put_bytes: 0, got_bytes: 0, aborts: 0, ..sum };
    assert_eq!(paid, seen);
    assert!(sum.puts > 4 && sum.put_bytes > 0 && sum.got_bytes > 0, "{sum:?}");

    let Measured(all) = Measured::of(&snapshotter);
    let count = |name: &str, label: (&str, &str)| -> f64 {
        let of =
            |labels: &BTreeMap<String, String>| labels.get(label.0).is_some_and(|value| value == label.1);
        all.iter()
            .filter(|(of_name, series)| of_name == name && of(&series.labels))
            .map(|(_, series)| series.number())
            .sum()
    };
    let observed = requests.iter().filter(|request| request.call != Call::ListMultipartUploads);
    let refused = observed.filter(|request| request.status == Some(500)).count();
    let refused = f64::from(u32::try_from(refused).expect("few"));
    assert!(refused > 0.0, "the proxy refused some");
    assert_eq!(count("stash_http_requests_total", ("status", "5xx")), refused);
    let all_retries = |op: &str| count("stash_http_retries_total", ("op", op));
    assert!(["put", "get", "list", "delete", "bulk_delete"].map(all_retries).iter().sum::<f64>() > 0.0);
    let named = |label: &str| count("stash_http_requests_total", ("sink", label));
    assert!(named("s") > 8.0, "requests that concern a part are its sink's");
    assert_eq!(named("(unknown)"), 0.0);
}
