//! Target `descriptor`: what is said of bytes, before the bytes are seen.
//!
//! Input: a byte that says which check, then its arguments.
//!
//! - A forged descriptor over a valid tail is refused, or differs only in what it alone says: who wrote it under
//!   which number, the digest of the whole, and a larger piece (which costs its reader only memory).
//! - Facts add up the same in any order.
//! - A share is armed only for its own sink and incarnation, only with facts within its description, and its parts'
//!   keys lie under the receiver's own shard whatever it says (I23).

use std::num::NonZeroU32;
use std::sync::OnceLock;

use stash_batch::{IncarnationSpec, check_share};
use stash_part::{PartLayout, decode_inline, verify_whole};
use stash_types::{
    Digest, DisarmedShare, Frontier, IncarnationId, PartDescriptor, PartKey, PartName, RunFacts, ShardId,
    Share, SinkId, wire::Wire,
};
use uuid::Uuid;

use crate::input::{Input, sealed};
use crate::rows::{SCHEMAS, honest, schemas};

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.u8() % 3 {
        0 => forged(input),
        1 => facts(input.rest()),
        _ => share(input),
    }
}

fn forged(mut input: Input<'_>) {
    let honest = &honest()[usize::from(input.u8()) % honest().len()];
    let Ok(forged) = PartDescriptor::from_wire(&sealed(b'P', 1, input.rest())) else { return };
    if verify_whole(&forged, std::slice::from_ref(&honest.object)).is_ok() {
        assert_eq!(
            (forged.len, forged.digest),
            (honest.part.len, honest.part.digest),
            "another object passes"
        );
    }
    if PartLayout::parse(&schemas()[honest.schema], &forged, honest.tail()).is_err() {
        return;
    }
    assert!(forged.piece_bytes >= honest.part.piece_bytes, "a reader would reserve too little");
    let PartDescriptor { process, n, digest, piece_bytes, .. } = forged;
    let only_its_own = PartDescriptor { process, n, digest, piece_bytes, ..honest.part.clone() };
    assert_eq!(forged, only_its_own, "a forged descriptor passes for a part it does not describe");
}

fn facts(bytes: &[u8]) {
    let Ok(([a, b, c], _)) = postcard::take_from_bytes::<[RunFacts; 3]>(bytes) else { return };
    let written = postcard::to_stdvec(&a).expect("facts can be written");
    assert_eq!(postcard::from_bytes::<RunFacts>(&written).as_ref(), Ok(&a));
    let both = a.and(b);
    assert!(both.update_count >= a.update_count.max(b.update_count), "facts are lost");
    if a.update_count > 0 && b.update_count > 0 {
        assert_eq!(both, b.and(a), "the order of two matters");
        assert!(both.min_time <= a.min_time.min(b.min_time) && both.max_time >= a.max_time.max(b.max_time));
    }
    let all = [a.diff_sum, b.diff_sum, c.diff_sum];
    let small = all.iter().all(|sum| sum.unsigned_abs() < u128::MAX / 8);
    if small && [a, b, c].iter().all(|facts| facts.update_count > 0) {
        assert_eq!(both.and(c), a.and(b.and(c)), "the order of three matters");
    }
    assert_eq!(a.and(RunFacts::default()), if a.update_count == 0 { RunFacts::default() } else { a });
}

/// The incarnation that shares are armed for, by schema.
pub fn spec(schema: usize) -> &'static IncarnationSpec {
    static SPECS: OnceLock<Vec<IncarnationSpec>> = OnceLock::new();
    let specs = SPECS.get_or_init(|| {
        let spec = |schema: usize| IncarnationSpec {
            sink: SinkId::from_uuid(Uuid::from_u128(42)),
            shard: ShardId::from_uuid(Uuid::from_u128(43)),
            schema: schemas()[schema].clone(),
            up_to: Frontier::EMPTY,
            incarnation: IncarnationId::from_uuid(Uuid::from_u128(44)),
            process: 0,
            workers: NonZeroU32::MIN,
            local_workers: NonZeroU32::MIN,
        };
        (0..SCHEMAS).map(spec).collect()
    });
    &specs[schema]
}

/// Flag: the share is addressed to the incarnation that gets it.
pub const ADDRESSED: u8 = 1;
/// Flag: an inline run gets a fresh digest and the schema's fingerprint.
pub const FRESH_DIGEST: u8 = 2;

fn share(mut input: Input<'_>) {
    let spec = spec(usize::from(input.u8()) % SCHEMAS);
    let flags = input.u8();
    let Ok(mut message) = DisarmedShare::from_wire(&sealed(b'S', 1, input.rest())) else { return };
    if flags & ADDRESSED != 0 {
        (message.sink, message.incarnation) = (spec.sink, spec.incarnation);
    }
    if let Share::Inline(run) = &mut message.share
        && flags & FRESH_DIGEST != 0
    {
        (run.digest, run.schema) = (Digest::of(&run.payload), spec.schema.fingerprint());
    }
    if check_share(spec, &message).is_err() {
        return;
    }
    assert_eq!(
        (message.sink, message.incarnation),
        (spec.sink, spec.incarnation),
        "a share that went astray"
    );
    let description = message.description;
    match &message.share {
        Share::Stashed(parts) => parts.iter().for_each(|part| {
            let RunFacts { min_time, max_time, .. } = part.facts;
            assert!(description.contains(min_time) && description.contains(max_time), "times outside");
            let PartDescriptor { process, n, .. } = *part;
            let name = PartName { incarnation: spec.incarnation, description, process, n };
            let key = name.under(spec.shard).to_string();
            assert!(key.starts_with(&format!("{}/{}/", spec.shard, spec.incarnation)), "{key}");
            assert_eq!(key.parse::<PartKey>().map(|key| key.name), Ok(name), "a key that is not read back");
        }),
        Share::Inline(run) => {
            let updates = decode_inline(&spec.schema, run).expect("it was read before it was armed");
            assert_eq!(updates.num_rows() as u64, run.facts.update_count);
            assert!(updates.times().iter().all(|time| description.contains(*time)), "times outside");
        }
        Share::Empty | Share::Failed { .. } | Share::Dropped => {}
    }
}
