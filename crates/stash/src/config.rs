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
    /// Whether an opening of an incarnation lists the sink's folder and queues what dead ones left there, and so does a
    /// drop. Default: yes, so that crashes heal without an operator. Say no where the credentials may not list, and let
    /// somebody run `stash-admin sweep` now and then who may. A listing that is denied is passed over with a warning anyway.
    pub sweep_at_open: bool,
}

impl Default for StashConfig {
    fn default() -> StashConfig {
        StashConfig {
            batch: BatchConfig::default(),
            lease_secs: 60,
            descriptions_in_flight_max: stash_chain::DESCRIPTIONS_IN_FLIGHT_MAX,
            sweep_at_open: true,
        }
    }
}
