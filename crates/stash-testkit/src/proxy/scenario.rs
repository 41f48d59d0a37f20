//! What goes wrong between a client and its server: named scenarios, drawn from a seed.
//!
//! A draw is a pure function of the seed, the call, the key and how often that was asked: the same requests meet the same
//! faults whatever their order. Bursts are of neighbouring requests, so they follow the order in which requests come.

use std::{collections::BTreeSet, fmt, str::FromStr};

use super::{Call, Request};
use crate::plan::{fnv1a, splitmix64};

/// An answer with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// The code in the answer's body.
    pub code: &'static str,
}

/// How one request goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server is not asked; this is the answer.
    Refused(Refusal),
    /// The server did what it was asked, and answered with success; the client gets this.
    Instead(Refusal),
    /// The connection is reset; the server is not asked.
    ResetBefore,
    /// The server answered; the connection is reset before the client hears of it.
    ResetAfter,
    /// Bodies come by bits, both ways. It ends: a body takes a quarter of a second more.
    Slow,
    /// Of the request's body half reaches the server, then both connections break.
    CutRequest,
    /// Of the response's body half reaches the client, then the connection breaks.
    CutResponse,
    /// Of a bulk delete some keys are deleted, some are not, and of both some are reported as errors, with status 200.
    PartialDelete,
}

/// What goes wrong, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Nothing.
    Healthy,
    /// Bursts of 503 SlowDown: so many of a hundred pairs of requests that follow one another are refused.
    SlowDown {
        /// Of a hundred pairs.
        percent: u8,
    },
    /// 500 InternalError, half of them after the effect.
    InternalError {
        /// Of a hundred requests.
        percent: u8,
    },
    /// Connections are reset before the server was asked.
    ResetBefore {
        /// Of a hundred requests.
        percent: u8,
    },
    /// Responses are lost after the effect.
    ResetAfter {
        /// Of a hundred requests.
        percent: u8,
    },
    /// Bodies trickle.
    SlowBodies {
        /// Of a hundred requests.
        percent: u8,
    },
    /// Bodies end before the length that was announced, in both directions.
    CutBodies {
        /// Of a hundred requests.
        percent: u8,
    },
    /// Bulk deletes succeed in part.
    PartialDeletes {
        /// Of a hundred bulk deletes.
        percent: u8,
    },
    /// The first request of each kind finds that its token has expired.
    ExpiredToken,
    /// 403 RequestTimeTooSkewed.
    ClockSkew {
        /// Of a hundred requests.
        percent: u8,
    },
    /// 409 ConditionalRequestConflict to create-only PUTs, without effect.
    CreateConflict {
        /// Of a hundred create-only PUTs.
        percent: u8,
    },
    /// 412 PreconditionFailed to create-only PUTs that did create: as when somebody on the way tried again.
    LatePrecondition {
        /// Of a hundred create-only PUTs.
        percent: u8,
    },
    /// Some of everything but expired tokens and skewed clocks.
    Mixed {
        /// Of a hundred requests.
        percent: u8,
    },
}

const SLOW_DOWN: Refusal = Refusal { status: 503, code: "SlowDown" };
const INTERNAL_ERROR: Refusal = Refusal { status: 500, code: "InternalError" };
const EXPIRED_TOKEN: Refusal = Refusal { status: 400, code: "ExpiredToken" };
const CLOCK_SKEW: Refusal = Refusal { status: 403, code: "RequestTimeTooSkewed" };
const CONFLICT: Refusal = Refusal { status: 409, code: "ConditionalRequestConflict" };
const PRECONDITION: Refusal = Refusal { status: 412, code: "PreconditionFailed" };

/// Requests that follow one another share their fate in a burst. Few, since who is refused waits: what a store counts by time
/// must not last longer the more patient its clients are.
const BURST: u64 = 2;

impl Scenario {
    /// Every way to go wrong, at the rates that tests use.
    pub const ALL: [Scenario; 14] = [
        Scenario::SlowDown { percent: 10 },
        Scenario::SlowDown { percent: 40 },
        Scenario::SlowDown { percent: 75 },
        Scenario::InternalError { percent: 25 },
        Scenario::ResetBefore { percent: 25 },
        Scenario::ResetAfter { percent: 25 },
        Scenario::SlowBodies { percent: 30 },
        Scenario::CutBodies { percent: 25 },
        Scenario::PartialDeletes { percent: 60 },
        Scenario::ExpiredToken,
        Scenario::ClockSkew { percent: 5 },
        Scenario::CreateConflict { percent: 30 },
        Scenario::LatePrecondition { percent: 30 },
        Scenario::Mixed { percent: 25 },
    ];

    /// The kind, without how often.
    fn kind(self) -> &'static str {
        match self {
            Scenario::Healthy => "healthy",
            Scenario::SlowDown { .. } => "slow-down",
            Scenario::InternalError { .. } => "internal-error",
            Scenario::ResetBefore { .. } => "reset-before",
            Scenario::ResetAfter { .. } => "reset-after",
            Scenario::SlowBodies { .. } => "slow-bodies",
            Scenario::CutBodies { .. } => "cut-bodies",
            Scenario::PartialDeletes { .. } => "partial-deletes",
            Scenario::ExpiredToken => "expired-token",
            Scenario::ClockSkew { .. } => "clock-skew",
            Scenario::CreateConflict { .. } => "create-conflict",
            Scenario::LatePrecondition { .. } => "late-precondition",
            Scenario::Mixed { .. } => "mixed",
        }
    }

    /// Of a hundred requests that are meant, so many go wrong. 0 where it is not a matter of chance.
    pub fn percent(self) -> u8 {
        match self {
            Scenario::Healthy | Scenario::ExpiredToken => 0,
            Scenario::SlowDown { percent }
            | Scenario::InternalError { percent }
            | Scenario::ResetBefore { percent }
            | Scenario::ResetAfter { percent }
            | Scenario::SlowBodies { percent }
            | Scenario::CutBodies { percent }
            | Scenario::PartialDeletes { percent }
            | Scenario::ClockSkew { percent }
            | Scenario::CreateConflict { percent }
            | Scenario::LatePrecondition { percent }
            | Scenario::Mixed { percent } => percent,
        }
    }

    fn with_percent(self, to: u8) -> Scenario {
        let mut scenario = self;
        match &mut scenario {
            Scenario::Healthy | Scenario::ExpiredToken => {}
            Scenario::SlowDown { percent }
            | Scenario::InternalError { percent }
            | Scenario::ResetBefore { percent }
            | Scenario::ResetAfter { percent }
            | Scenario::SlowBodies { percent }
            | Scenario::CutBodies { percent }
            | Scenario::PartialDeletes { percent }
            | Scenario::ClockSkew { percent }
            | Scenario::CreateConflict { percent }
            | Scenario::LatePrecondition { percent }
            | Scenario::Mixed { percent } => *percent = to,
        }
        scenario
    }
}

/// `slow-down-75`, `expired-token`, `healthy`.
impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scenario::Healthy | Scenario::ExpiredToken => f.write_str(self.kind()),
            _ => write!(f, "{}-{}", self.kind(), self.percent()),
        }
    }
}

/// Not the name of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no scenario is named {0}: name one of {known}, with any number up to 100", known = known())]
pub struct UnknownScenario(String);

fn known() -> String {
    let names = Scenario::ALL.iter().map(Scenario::to_string);
    names.chain([Scenario::Healthy.to_string()]).collect::<Vec<_>>().join(", ")
}

impl FromStr for Scenario {
    type Err = UnknownScenario;

    fn from_str(text: &str) -> Result<Scenario, UnknownScenario> {
        let unknown = || UnknownScenario(text.to_owned());
        if let Some(fixed) =
            [Scenario::Healthy, Scenario::ExpiredToken].into_iter().find(|fixed| fixed.kind() == text)
        {
            return Ok(fixed);
        }
        let (kind, percent) = text.rsplit_once('-').ok_or_else(unknown)?;
        let percent = percent.parse().ok().filter(|percent| *percent <= 100).ok_or_else(unknown)?;
        let scenario =
            Scenario::ALL.into_iter().find(|scenario| scenario.kind() == kind && scenario.percent() > 0);
        Ok(scenario.ok_or_else(unknown)?.with_percent(percent))
    }
}

/// A scenario under way.
#[derive(Debug)]
pub(super) struct Plan {
    scenario: Scenario,
    seed: u64,
    asked: u64,
    expired: BTreeSet<Call>,
}

impl Plan {
    pub(super) fn new(scenario: Scenario, seed: u64) -> Plan {
        Plan { scenario, seed, asked: 0, expired: BTreeSet::new() }
    }

    /// How the next request goes wrong, if it does.
    pub(super) fn next(&mut self, request: &Request) -> Option<Fault> {
        let nth = self.asked;
        self.asked += 1;
        let bits = draw(self.seed, request);
        let percent = u64::from(self.scenario.percent());
        let hit = bits % 100 < percent;
        // Chosen by other bits than whether.
        let before = (bits >> 32).is_multiple_of(2);
        match self.scenario {
            Scenario::Healthy => None,
            Scenario::SlowDown { .. } => {
                let burst = splitmix64(self.seed ^ splitmix64(nth / BURST)) % 100 < percent;
                burst.then_some(Fault::Refused(SLOW_DOWN))
            }
            Scenario::InternalError { .. } => hit.then_some(match before {
                true => Fault::Refused(INTERNAL_ERROR),
                false => Fault::Instead(INTERNAL_ERROR),
            }),
            Scenario::ResetBefore { .. } => hit.then_some(Fault::ResetBefore),
            Scenario::ResetAfter { .. } => hit.then_some(Fault::ResetAfter),
            Scenario::SlowBodies { .. } => hit.then_some(Fault::Slow),
            Scenario::CutBodies { .. } => hit.then_some(cut(request)),
            Scenario::PartialDeletes { .. } => {
                (hit && request.call == Call::DeleteObjects).then_some(Fault::PartialDelete)
            }
            Scenario::ExpiredToken => {
                self.expired.insert(request.call).then_some(Fault::Refused(EXPIRED_TOKEN))
            }
            Scenario::ClockSkew { .. } => hit.then_some(Fault::Refused(CLOCK_SKEW)),
            Scenario::CreateConflict { .. } => {
                (hit && request.create_only).then_some(Fault::Refused(CONFLICT))
            }
            Scenario::LatePrecondition { .. } => {
                (hit && request.create_only).then_some(Fault::Instead(PRECONDITION))
            }
            Scenario::Mixed { .. } => hit.then(|| mixed(bits >> 40, request)),
        }
    }
}

fn draw(seed: u64, request: &Request) -> u64 {
    let Request { call, bucket, key, query, range, attempt, .. } = request;
    let texts = [call.name(), bucket, key, query, range.as_deref().unwrap_or_default()];
    let place = fnv1a(texts.iter().flat_map(|text| text.bytes().chain([0])));
    splitmix64(seed ^ splitmix64(place.wrapping_add(u64::from(*attempt))))
}

fn cut(request: &Request) -> Fault {
    match request.call {
        Call::PutObject | Call::UploadPart => Fault::CutRequest,
        _ => Fault::CutResponse,
    }
}

fn mixed(bits: u64, request: &Request) -> Fault {
    match bits % 8 {
        0 => Fault::Refused(SLOW_DOWN),
        1 => Fault::Refused(INTERNAL_ERROR),
        2 => Fault::Instead(INTERNAL_ERROR),
        3 => Fault::ResetBefore,
        4 => Fault::ResetAfter,
        5 => cut(request),
        6 if request.call == Call::DeleteObjects => Fault::PartialDelete,
        6 if request.create_only => Fault::Refused(CONFLICT),
        7 if request.create_only => Fault::Instead(PRECONDITION),
        _ => Fault::Slow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(call: Call, key: &str, attempt: u32) -> Request {
        Request {
            call,
            key: key.to_owned(),
            attempt,
            create_only: call == Call::PutObject,
            ..Request::default()
        }
    }

    fn faults(scenario: Scenario, seed: u64, call: Call) -> Vec<Option<Fault>> {
        let mut plan = Plan::new(scenario, seed);
        (0..4000).map(|n| plan.next(&request(call, &format!("key-{}", n / 4), n % 4 + 1))).collect()
    }

    #[test]
    fn names_are_read_back() {
        for scenario in Scenario::ALL.into_iter().chain([Scenario::Healthy]) {
            assert_eq!(scenario.to_string().parse(), Ok(scenario));
        }
        assert_eq!("slow-down-33".parse(), Ok(Scenario::SlowDown { percent: 33 }));
        for wrong in ["slow-down", "slow-down-101", "slow-down--1", "nothing-5", "", "expired-token-5"] {
            wrong.parse::<Scenario>().expect_err(wrong);
        }
    }

    #[test]
    fn rates_come_out_as_asked_and_a_seed_replays() {
        for scenario in Scenario::ALL.into_iter().filter(|scenario| scenario.percent() > 0) {
            let call = match scenario {
                Scenario::PartialDeletes { .. } => Call::DeleteObjects,
                _ => Call::PutObject,
            };
            let met = faults(scenario, 7, call);
            let percent = met.iter().flatten().count() / 40;
            let wanted = usize::from(scenario.percent());
            assert!(percent.abs_diff(wanted) <= 8, "{scenario}: {percent} %");
            assert_eq!(met, faults(scenario, 7, call), "{scenario}");
            assert_ne!(met, faults(scenario, 8, call), "{scenario}");
        }
    }

    #[test]
    fn a_healthy_server_has_no_faults() {
        assert!(faults(Scenario::Healthy, 7, Call::PutObject).iter().all(Option::is_none));
    }

    #[test]
    fn a_token_expires_once_for_each_kind_of_call() {
        let mut plan = Plan::new(Scenario::ExpiredToken, 1);
        for call in [Call::PutObject, Call::GetObject] {
            assert_eq!(plan.next(&request(call, "a", 1)), Some(Fault::Refused(EXPIRED_TOKEN)));
            assert_eq!(plan.next(&request(call, "a", 2)), None);
        }
    }

    #[test]
    fn what_is_said_of_creates_is_said_of_nothing_else() {
        for scenario in
            [Scenario::CreateConflict { percent: 100 }, Scenario::LatePrecondition { percent: 100 }]
        {
            assert!(faults(scenario, 1, Call::GetObject).iter().all(Option::is_none));
            assert!(faults(scenario, 1, Call::PutObject).iter().all(Option::is_some));
        }
    }
}
