//! What a store really does.
//!
//! Many stores speak S3, and each means something else by it. A probe asks the store itself, in under a minute, for all
//! that Stash relies on and for what operators want to know: each question ([`Check`]) gets an [`Answer`], and what the
//! answers mean is a pure function ([`verdict()`]).
//!
//! - Everything happens below `<prefix>/.stash-probe-<uuid>/`, and all of it is taken away at the end, also where the probe
//!   was stopped or the store failed. What could not be taken away is named ([`ProbeReport::left`]).
//! - A question that got no clear answer is *unknown*, with the reason; it never counts as *yes*.
//! - What is stopped lets the requests under way end, which is a matter of seconds: a request that is cut off could have
//!   its effect after everything was taken away. Dropping the future leaves behind what is there.
//! - The limit of parts an upload has is tried by the number of a part, not by uploading 10,000.

mod clearing;
mod creating;
mod deleting;
mod finding;
mod listing;
mod reading;
mod site;
mod step;
mod trusting;
mod uploading;
mod verdict;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stash_types::IdSource;

pub use finding::{Answer, Check, Finding};
pub use verdict::{Consequence, Verdict, verdict};

use self::{reading::Times, site::Site, step::Found};
use super::{S3Config, credentials};

/// After so long no further question is asked; what is under way ends, and everything is taken away.
const ASKING_MAX: Duration = Duration::from_secs(45);

/// How long a request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// In the middle of all tries, in microseconds.
    pub median_us: u64,
    /// The slowest, in microseconds.
    pub slowest_us: u64,
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// Where the stash would be.
    pub location: String,
    /// The endpoint that was spoken to; `None`: the region's own.
    pub endpoint: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// What the store calls itself, where it does.
    pub server: Option<String>,
    /// Where the probe worked, below the prefix.
    pub folder: String,
    /// One finding for each question, in their order.
    pub findings: Vec<Finding>,
    /// What they mean.
    pub verdict: Verdict,
    /// How long a PUT of 1 KiB took.
    pub put: Option<Latency>,
    /// How long a GET of it took.
    pub get: Option<Latency>,
    /// How many requests the store answered.
    pub requests: u64,
    /// How long it took, in milliseconds.
    pub millis: u64,
    /// Whether it was stopped before its end.
    pub stopped: bool,
    /// What could not be taken away again, each with the reason. Empty: nothing is left.
    pub left: Vec<String>,
}

/// A probe that has its folder, and made no request yet.
#[derive(Debug)]
pub struct Probe {
    config: S3Config,
    folder: String,
}

impl Probe {
    /// Of the store that `config` names; the folder's name is drawn from `ids`.
    pub fn new(config: &S3Config, ids: &dyn IdSource) -> Probe {
        Probe { config: config.clone(), folder: format!(".stash-probe-{}/", ids.random()) }
    }

    /// Where it works: `s3://bucket/prefix/.stash-probe-…/`.
    pub fn place(&self) -> String {
        format!("{}/{}", self.config.location(), self.folder)
    }

    /// Asks every question. `progress` is told each finding as it comes; once `stop` is true no more is asked.
    pub async fn run(
        self,
        stop: impl Fn() -> bool + Send + Sync + 'static,
        progress: &mut (dyn FnMut(&Finding) + Send),
    ) -> ProbeReport {
        let began = Instant::now();
        let sdk = credentials::load(&self.config).await;
        let site = Site::new(&self.config, sdk, self.folder, stop, began + ASKING_MAX);
        let (mut found, mut times) = (Found::new(progress), Times::default());
        let versioned = ask(&site, &mut found, &mut times).await;
        let stopped = site.is_stopped();
        let why = if stopped {
            "the probe was stopped"
        } else if site.is_over() {
            "the time was up"
        } else {
            "not asked after what came before"
        };
        let findings = found.all(why);
        let left = site.clear(versioned).await;
        ProbeReport {
            location: self.config.location(),
            endpoint: site.sdk().endpoint_url().map(str::to_owned),
            region: site.sdk().region().map(ToString::to_string),
            server: site.server(),
            folder: site.folder().to_owned(),
            verdict: verdict(&findings),
            findings,
            put: latency(times.puts),
            get: latency(times.gets),
            requests: site.requests(),
            millis: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            stopped,
            left,
        }
    }
}

/// Finds out what the store that `config` names really does; `progress` is told each finding as it comes.
pub async fn probe(
    config: &S3Config,
    ids: &dyn IdSource,
    progress: &mut (dyn FnMut(&Finding) + Send),
) -> ProbeReport {
    Probe::new(config, ids).run(|| false, progress).await
}

/// Asks until all is asked, the time is up, or the caller wants no more. Whether deletions leave versions behind.
async fn ask(site: &Site, found: &mut Found<'_>, times: &mut Times) -> bool {
    if !reading::reach(site, found).await {
        return false;
    }
    let versioned = trusting::versions(site, found).await;
    trusting::clock(site, found);
    // Each question costs the store a bounded number of requests, so it is enough to look between them.
    macro_rules! unless_over {
        ($($step:expr;)*) => { $(if !site.is_over() { $step.await; })* };
    }
    unless_over! {
        reading::seen_at_once(site, found, times);
        reading::ranges(site, found);
        creating::creating(site, found);
        listing::listing(site, found);
        deleting::deleting(site, found);
        trusting::checksums(site, found);
        trusting::signatures(site, found);
        trusting::encryption(site, found);
        uploading::uploading(site, found);
    }
    versioned
}

fn latency(mut times: Vec<Duration>) -> Option<Latency> {
    times.sort();
    let micros = |time: &Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let (median, slowest) = (times.get(times.len() / 2)?, times.last()?);
    Some(Latency { median_us: micros(median), slowest_us: micros(slowest) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_is_the_middle_and_the_slowest() {
        let times = [5, 1, 3].map(Duration::from_micros).to_vec();
        assert_eq!(latency(times), Some(Latency { median_us: 3, slowest_us: 5 }));
        assert_eq!(latency(Vec::new()), None);
    }
}
