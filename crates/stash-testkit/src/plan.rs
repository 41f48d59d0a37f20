//! What goes wrong, decided ahead: by seed, by script, or always.
//!
//! An operation has *happened* or not, and is *reported* as done or failed; all four meet here:
//!
//! | | reported done | reported failed |
//! |---|---|---|
//! | happened | no fault | [`Fault::LostReply`] (indeterminate) |
//! | did not happen | [`Fault::Lie`] | [`Fault::Refused`] (determinate), [`Fault::Denied`], [`Fault::TimedOut`] (indeterminate) |
//!
//! Errors are honest: what happened is never reported as determinate. Only [`Fault::Lie`] is not, and no
//! system can be correct over a store that lies about writes; it is there to see integrity checks and audits
//! find it.
//!
//! A seeded plan is a pure function of (seed, operation, key, how often that was tried): the same run
//! meets the same faults whatever the scheduler does. The bits come from SplitMix64 (Steele, Lea, Flood 2014:
//! a counter through a 64-bit mixing function) over an FNV-1a hash of the key.

use std::collections::BTreeMap;

/// The kind of an operation on a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// `put_new`.
    Put,
    /// `get` and `get_range`.
    Get,
    /// `head`.
    Head,
    /// `delete`: planned for each key by itself, so a bulk delete fails in part.
    Delete,
    /// `list`, whose key is the prefix's folder.
    List,
    /// `abort_upload`.
    Abort,
}

impl Op {
    /// All kinds.
    pub const ALL: [Op; 6] = [Op::Put, Op::Get, Op::Head, Op::Delete, Op::List, Op::Abort];

    /// One word for people.
    pub const fn name(self) -> &'static str {
        match self {
            Op::Put => "put",
            Op::Get => "get",
            Op::Head => "head",
            Op::Delete => "delete",
            Op::List => "list",
            Op::Abort => "abort upload",
        }
    }
}

/// How one operation goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not happen, and says so: `Determinate`.
    Refused {
        /// Whether the error says that the same call may succeed later.
        retry: bool,
    },
    /// It does not happen, since the caller may not: `Denied`.
    Denied,
    /// It does not happen, and nobody can tell: `Indeterminate`.
    TimedOut,
    /// It happens, and nobody can tell: `Indeterminate`.
    LostReply,
    /// It does not happen, and reports success: a PUT stores nothing and says `Created`, a delete leaves the
    /// object, a GET returns bytes with one bit flipped, a HEAD and a listing show nothing.
    Lie,
}

/// How often each fault comes, of 1000 operations. Together at most 1000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// [`Fault::Refused`] with `retry`.
    pub refused: u16,
    /// [`Fault::TimedOut`].
    pub timed_out: u16,
    /// [`Fault::LostReply`].
    pub lost_reply: u16,
    /// [`Fault::Lie`].
    pub lie: u16,
}

impl FaultRates {
    /// Every honest fault, each `per_mille` of 1000 times.
    pub const fn honest(per_mille: u16) -> FaultRates {
        FaultRates { refused: per_mille, timed_out: per_mille, lost_reply: per_mille, lie: 0 }
    }

    fn pick(self, draw: u16) -> Option<Fault> {
        let FaultRates { refused, timed_out, lost_reply, lie } = self;
        let mut upper = 0;
        let steps = [
            (refused, Fault::Refused { retry: true }),
            (timed_out, Fault::TimedOut),
            (lost_reply, Fault::LostReply),
            (lie, Fault::Lie),
        ];
        steps.into_iter().find_map(|(rate, fault)| {
            upper += rate;
            (draw < upper).then_some(fault)
        })
    }
}

/// Which operations go wrong, and how. What is scripted comes before what is always, that before chance.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    seed: u64,
    rates: BTreeMap<Op, FaultRates>,
    always: BTreeMap<Op, Fault>,
    scripted: BTreeMap<(Op, u64), Fault>,
    keyed: BTreeMap<(Op, String), Fault>,
    seen: BTreeMap<Op, u64>,
    tried: BTreeMap<(Op, String), u64>,
}

impl FaultPlan {
    /// Nothing goes wrong.
    pub fn none() -> FaultPlan {
        FaultPlan::default()
    }

    /// Faults by chance, at the same rates for every kind of operation. Print the seed: it replays.
    pub fn seeded(seed: u64, rates: FaultRates) -> FaultPlan {
        let rates = Op::ALL.map(|op| (op, rates)).into();
        FaultPlan { seed, rates, ..FaultPlan::default() }
    }

    /// The same plan with other rates for `op`.
    pub fn with_rates(mut self, op: Op, rates: FaultRates) -> FaultPlan {
        self.rates.insert(op, rates);
        self
    }

    /// The same plan, and the `nth` operation of its kind (from 0, since the plan was set) goes wrong.
    pub fn at(mut self, op: Op, nth: u64, fault: Fault) -> FaultPlan {
        self.scripted.insert((op, nth), fault);
        self
    }

    /// The same plan, and every operation of the kind on `key` goes wrong.
    pub fn on_key(mut self, op: Op, key: impl ToString, fault: Fault) -> FaultPlan {
        self.keyed.insert((op, key.to_string()), fault);
        self
    }

    /// The same plan, and every operation of the kind goes wrong: an outage.
    pub fn always(mut self, op: Op, fault: Fault) -> FaultPlan {
        self.always.insert(op, fault);
        self
    }

    /// What happens to the next operation of the kind on `key`.
    pub(crate) fn next(&mut self, op: Op, key: &str) -> Option<Fault> {
        let nth = self.seen.entry(op).or_default();
        let scripted = self.scripted.get(&(op, *nth)).copied();
        *nth += 1;
        let named = (op, key.to_owned());
        let fixed =
            scripted.or_else(|| self.keyed.get(&named).copied()).or_else(|| self.always.get(&op).copied());
        let tries = self.tried.entry(named).or_default();
        *tries += 1;
        fixed.or_else(|| {
            let rates = *self.rates.get(&op)?;
            let place = fnv1a(op.name().bytes().chain([0]).chain(key.bytes()));
            let draw = splitmix64(self.seed ^ splitmix64(place.wrapping_add(*tries))) % 1000;
            rates.pick(u16::try_from(draw).unwrap_or(u16::MAX))
        })
    }
}

pub(crate) fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

pub(crate) fn splitmix64(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(plan: &mut FaultPlan, keys: &[&str]) -> Vec<Option<Fault>> {
        keys.iter().map(|key| plan.next(Op::Put, key)).collect()
    }

    #[test]
    fn a_seed_replays_whatever_the_order() {
        let keys: Vec<String> = (0..200).map(|n| format!("key-{n}")).collect();
        let forward: Vec<&str> = keys.iter().map(String::as_str).collect();
        let backward: Vec<&str> = forward.iter().rev().copied().collect();
        let plan = FaultPlan::seeded(7, FaultRates::honest(100));
        let one = run(&mut plan.clone(), &forward);
        let mut other = run(&mut plan.clone(), &backward);
        other.reverse();
        assert_eq!(one, other);
        assert_ne!(one, run(&mut FaultPlan::seeded(8, FaultRates::honest(100)), &forward));
    }

    #[test]
    fn rates_come_out_as_asked_and_tries_of_one_key_differ() {
        let mut plan = FaultPlan::seeded(1, FaultRates { lie: 100, ..FaultRates::honest(100) });
        let mut counts = BTreeMap::new();
        for _ in 0..10_000 {
            *counts.entry(format!("{:?}", plan.next(Op::Get, "one key"))).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 5, "{counts:?}");
        for (fault, count) in counts {
            let expected = if fault == "None" { 6000 } else { 1000 };
            assert!(i32::abs(count - expected) < 200, "{fault}: {count}");
        }
    }

    #[test]
    fn a_script_names_the_nth_operation_of_its_kind() {
        let mut plan = FaultPlan::none().at(Op::Put, 1, Fault::LostReply).always(Op::Get, Fault::TimedOut);
        assert_eq!(run(&mut plan, &["a", "a", "a"]), [None, Some(Fault::LostReply), None]);
        assert_eq!(plan.next(Op::Get, "a"), Some(Fault::TimedOut));
        let mut plan = FaultPlan::none().on_key(Op::Put, "b", Fault::Lie);
        assert_eq!(run(&mut plan, &["a", "b", "b"]), [None, Some(Fault::Lie), Some(Fault::Lie)]);
    }
}
