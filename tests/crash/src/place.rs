//! Places to die at: which there are, who passes them, and arming a process with one.
//!
//! The table names every `fault::place` of the product and of the roles; a test compares it with the sources. A
//! place that is not in the table could not be hit, and one that is only in the table would never be.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Mutex, sync::PoisonError};

use crate::message::{Event, tell};

/// A kind of process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Writes.
    Replica,
    /// Reads and acknowledges.
    Consumer,
    /// Sweeps and verifies, all the time.
    Sweeper,
    /// Takes what outlived the sink's retention.
    Expirer,
    /// Drops the sink.
    Dropper,
}

/// When a place is passed at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In every run.
    Always,
    /// By the process that is first at a new stash.
    First,
    /// By what is started again after it died at this place.
    After(&'static str),
    /// In a replica of two processes.
    Two,
}

/// A place to die at.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its name, as the sources have it.
    pub name: &'static str,
    /// Who passes it, and how often at the least, about.
    pub by: &'static [(Kind, u64)],
    /// When it is passed.
    pub when: When,
}

use Kind::{Consumer as C, Dropper as D, Expirer as E, Replica as R, Sweeper as S};

const fn place(name: &'static str, when: When, by: &'static [(Kind, u64)]) -> Place {
    Place { name, by, when }
}

/// Every place.
pub const PLACES: &[Place] = &[
    place("blob.folders_made", When::Always, &[(R, 5)]),
    place("blob.temp_created", When::Always, &[(R, 5)]),
    place("blob.chunk_written", When::Always, &[(R, 12)]),
    place("blob.temp_synced", When::Always, &[(R, 5)]),
    place("blob.linked", When::Always, &[(R, 5)]),
    place("blob.temp_removed", When::Always, &[(R, 5)]),
    place("blob.put_synced", When::Always, &[(R, 5)]),
    place("blob.unlinked", When::Always, &[(C, 2), (E, 1), (D, 1)]),
    place("blob.delete_synced", When::Always, &[(C, 2), (E, 1), (D, 1)]),
    place("blob.folder_removed", When::Always, &[(C, 2), (E, 1), (D, 1)]),
    place("catalog.lock_taken", When::First, &[(R, 1), (C, 1)]),
    place("catalog.file_made", When::First, &[(R, 1), (C, 1)]),
    place("catalog.migrated", When::First, &[(R, 1), (C, 1)]),
    place("catalog.identity_drawn", When::First, &[(R, 1), (C, 1)]),
    place("catalog.declare_ready", When::First, &[(R, 1), (C, 1)]),
    place("catalog.declare_done", When::First, &[(R, 1), (C, 1)]),
    place("catalog.begun", When::Always, &[(R, 10), (C, 8), (S, 2), (E, 1), (D, 1)]),
    place("catalog.head_taken", When::Always, &[(R, 4), (C, 6), (S, 1), (E, 1), (D, 1)]),
    place("catalog.head_moved", When::Always, &[(R, 4)]),
    place("catalog.unlinked", When::Always, &[(C, 4), (E, 1), (D, 1)]),
    place("catalog.open_ready", When::Always, &[(R, 1)]),
    place("catalog.open_done", When::Always, &[(R, 1)]),
    place("catalog.close_ready", When::Always, &[(R, 1)]),
    place("catalog.close_done", When::Always, &[(R, 1)]),
    place("catalog.commit_ready", When::Always, &[(R, 4)]),
    place("catalog.commit_done", When::Always, &[(R, 4)]),
    place("catalog.register_ready", When::Always, &[(C, 1)]),
    place("catalog.register_done", When::Always, &[(C, 1)]),
    place("catalog.acknowledge_ready", When::Always, &[(C, 5)]),
    place("catalog.acknowledge_done", When::Always, &[(C, 5)]),
    place("catalog.enqueue_ready", When::After("batch.part_put"), &[(R, 1)]),
    place("catalog.enqueue_done", When::After("batch.part_put"), &[(R, 1)]),
    place("catalog.dequeue_ready", When::Always, &[(C, 2), (E, 1), (D, 1)]),
    place("catalog.dequeue_done", When::Always, &[(C, 2), (E, 1), (D, 1)]),
    place("catalog.expire_ready", When::Always, &[(E, 1)]),
    place("catalog.expire_done", When::Always, &[(E, 1)]),
    place("catalog.drop_ready", When::Always, &[(D, 1)]),
    place("catalog.drop_done", When::Always, &[(D, 1)]),
    place("catalog.other_ready", When::Always, &[(C, 1)]),
    place("catalog.other_done", When::Always, &[(C, 1)]),
    place("batch.part_owned", When::Always, &[(R, 5)]),
    place("batch.part_put", When::Always, &[(R, 5)]),
    place("batch.run_written", When::Always, &[(R, 4)]),
    place("batch.runs_merged", When::Always, &[(R, 1)]),
    place("batch.share_handed", When::Always, &[(R, 10)]),
    place("batch.disarmed", When::Two, &[(R, 2)]),
    place("batch.armed", When::Two, &[(R, 4)]),
    place("batch.piece_read", When::Always, &[(C, 6)]),
    place("batch.due_fetched", When::Always, &[(C, 2), (E, 1), (D, 1)]),
    place("batch.deleted", When::Always, &[(C, 2), (E, 1), (D, 1)]),
    place("batch.dequeued", When::Always, &[(C, 2), (E, 1), (D, 1)]),
    place("batch.given_up_queued", When::Always, &[(R, 1)]),
    place("batch.closing", When::Always, &[(R, 1), (C, 1), (S, 1), (D, 1)]),
    place("stash.claimed", When::Always, &[(R, 1), (C, 1), (S, 1), (D, 1)]),
    place("stash.registered", When::Always, &[(R, 1)]),
    place("stash.swept_at_opening", When::Always, &[(R, 1)]),
    place("stash.share_merged", When::Always, &[(R, 4)]),
    place("stash.offer_decided", When::Always, &[(R, 4)]),
    place("stash.offer_resolved", When::Always, &[(R, 4)]),
    place("stash.offer_settled", When::Always, &[(R, 4)]),
    place("stash.abandoned", When::Always, &[(R, 1)]),
    place("stash.delivered", When::Always, &[(C, 5)]),
    place("stash.acknowledging", When::Always, &[(C, 5)]),
    place("stash.acknowledged", When::Always, &[(C, 5)]),
    place("stash.sweep_listed", When::Always, &[(R, 1), (S, 3), (D, 1)]),
    place("stash.sweep_judged", When::Always, &[(S, 2), (D, 1)]),
    place("stash.sweep_queued", When::Always, &[(S, 2), (D, 1)]),
    place("stash.upload_removed", When::After("blob.temp_created"), &[(R, 1)]),
    place("stash.expired", When::Always, &[(E, 1)]),
    place("stash.dropped", When::Always, &[(D, 1)]),
    place("stash.drop_swept", When::Always, &[(D, 1)]),
    place("stash.drop_drained", When::Always, &[(D, 1)]),
    place("role.recorded", When::Always, &[(C, 5)]),
];

/// A place and which time it is passed: `PLACE:COUNT`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    /// The place.
    pub place: String,
    /// Which time, from 1.
    pub hit: u64,
}

impl At {
    /// The `hit`th time at `place`.
    pub fn new(place: &str, hit: u64) -> At {
        At { place: place.to_owned(), hit }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.place, self.hit)
    }
}

impl FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<At, String> {
        let wrong =
            || format!("{text:?} is not PLACE:COUNT, with one of the known places and a count from 1");
        let (place, hit) = text.split_once(':').ok_or_else(wrong)?;
        match hit.parse() {
            Ok(hit @ 1..) if PLACES.iter().any(|known| known.name == place) => Ok(At::new(place, hit)),
            _ => Err(wrong()),
        }
    }
}

static HITS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// How often this process has passed each place.
pub fn hits() -> BTreeMap<String, u64> {
    let hits = HITS.lock().unwrap_or_else(PoisonError::into_inner);
    hits.iter().map(|(place, hits)| ((*place).to_owned(), *hits)).collect()
}

/// Whether places are compiled in.
pub const COMPILED_IN: bool = cfg!(feature = "faults");

/// Counts this process's places from now on, and has it die at one and stop at another.
pub fn arm(die_at: Option<At>, stop_at: Option<At>) {
    let hook = move |name: &'static str| {
        let hit = {
            let mut hits = HITS.lock().unwrap_or_else(PoisonError::into_inner);
            let hit = hits.entry(name).or_default();
            *hit += 1;
            *hit
        };
        let is_here = |at: &At| at.place == name && at.hit == hit;
        if die_at.as_ref().is_some_and(is_here) {
            signal_self(rustix::process::Signal::KILL);
        }
        if stop_at.as_ref().is_some_and(is_here) {
            tell(&Event::Stopping { place: name.to_owned() });
            signal_self(rustix::process::Signal::STOP);
        }
    };
    #[cfg(feature = "faults")]
    stash_types::fault::install(hook);
    #[cfg(not(feature = "faults"))]
    drop(hook);
}

fn signal_self(signal: rustix::process::Signal) {
    if let Err(error) = rustix::process::kill_process(rustix::process::getpid(), signal) {
        eprintln!("this process cannot signal itself: {error}");
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    fn named_in(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                named_in(&path, found);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                for call in text.split("fault::place(\"").skip(1) {
                    found.insert(call.split('"').next().unwrap().to_owned());
                }
                // The write transactions' places stand in a table of their own.
                if path.ends_with("sql/write.rs") {
                    let quoted = text.split('"').filter(|word| word.starts_with("catalog."));
                    found.extend(quoted.map(str::to_owned));
                }
            }
        }
    }

    #[test]
    fn the_table_names_every_place_of_the_sources_and_no_other() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut found = BTreeSet::new();
        named_in(&root.join("crates"), &mut found);
        named_in(&root.join("tests/crash/src/role"), &mut found);
        let table: BTreeSet<String> = PLACES.iter().map(|place| place.name.to_owned()).collect();
        assert_eq!(table.len(), PLACES.len(), "a place stands twice in the table");
        assert_eq!(table, found);
        assert!(table.len() >= 25);
    }

    #[test]
    fn a_place_and_count_is_read_as_it_is_written() {
        let at = At::new("blob.linked", 3);
        assert_eq!(at.to_string().parse(), Ok(at));
        for wrong in ["blob.linked", "blob.linked:0", "blob.linked:x", "nowhere:1", ":1"] {
            assert!(wrong.parse::<At>().is_err(), "{wrong}");
        }
    }
}
