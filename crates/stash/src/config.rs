//! The knobs of a session.

use serde::{Deserialize, Serialize};
use stash_batch::BatchConfig;

/// How this process works with a stash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StashConfig {
    /// Memory, part and inline sizes.
    pub batch: BatchConfig,
    /// How long an incarnation holds without being renewed, in seconds. Default 60: a pause shorter than this
    /// costs nothing, a longer one a rendering anew. It is renewed three times as often.
    pub lease_secs: u32,
    /// Descriptions of an incarnation that are open at once. Default 16; the next mint takes the whole
    /// frontier.
    pub descriptions_in_flight_max: usize,
}

impl Default for StashConfig {
    fn default() -> StashConfig {
        StashConfig {
            batch: BatchConfig::default(),
            lease_secs: 60,
            descriptions_in_flight_max: stash_chain::DESCRIPTIONS_IN_FLIGHT_MAX,
        }
    }
}
