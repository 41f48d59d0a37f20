use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::*;

fn facts() -> impl Strategy<Value = RunFacts> {
    (any::<u64>(), any::<i128>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
        |(update_count, diff_sum, min_time, max_time, uncompressed_bytes)| RunFacts {
            update_count,
            diff_sum,
            min_time,
            max_time,
            uncompressed_bytes,
        },
    )
}

fn digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest)
}

fn part() -> impl Strategy<Value = PartDescriptor> {
    let counts = (any::<u32>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>());
    (counts, any::<u64>(), any::<u64>(), digest(), digest(), facts()).prop_map(
        |((process, n, group, run, ordinal), len, tail_len, tail_digest, digest, facts)| {
            let schema = SchemaFingerprint(tail_digest);
            let piece_bytes = facts.uncompressed_bytes / 2;
            PartDescriptor {
                process,
                n,
                group,
                run,
                ordinal,
                len,
                tail_len,
                tail_digest,
                digest,
                facts,
                piece_bytes,
                schema,
            }
        },
    )
}

fn share() -> impl Strategy<Value = Share<Vec<PartDescriptor>>> {
    let inline =
        (any::<u32>(), any::<Vec<u8>>(), digest(), facts()).prop_map(|(group, payload, digest, facts)| {
            let schema = SchemaFingerprint(digest);
            Share::Inline(InlineRun { group, payload: payload.into(), digest, facts, schema })
        });
    prop_oneof![
        Just(Share::Empty),
        inline,
        proptest::collection::vec(part(), 0..4).prop_map(Share::Stashed),
        ".*".prop_map(|reason| Share::Failed { reason }),
        Just(Share::Dropped),
    ]
}

fn message() -> impl Strategy<Value = share::DisarmedShare> {
    let bounds = (0..u64::MAX).prop_flat_map(|lower| (Just(lower), lower + 1..=u64::MAX));
    let poisoned =
        proptest::option::of((any::<u64>(), ".*").prop_map(|(at, message)| DataflowError { at, message }));
    (any::<(u128, u128)>(), bounds, any::<(u64, u32)>(), share(), poisoned).prop_map(
        |((sink, incarnation), (lower, upper), (floor, worker), share, poisoned)| ShareMessage {
            sink: SinkId::from_uuid(Uuid::from_u128(sink)),
            incarnation: IncarnationId::from_uuid(Uuid::from_u128(incarnation)),
            description: Description::new(Frontier::at(lower), Frontier::at(upper)).expect("ordered"),
            floor: Frontier::at(floor),
            worker: WorkerIndex(worker),
            share,
            poisoned,
        },
    )
}

proptest! {
    #[test]
    fn roundtrip_share(message in message()) {
        let frame = message.to_wire().expect("encodes");
        prop_assert_eq!(share::DisarmedShare::from_wire(&frame), Ok(message));
    }

    #[test]
    fn roundtrip_part_descriptor(part in part()) {
        let frame = part.to_wire().expect("encodes");
        prop_assert_eq!(PartDescriptor::from_wire(&frame), Ok(part));
    }

    #[test]
    fn a_frame_with_a_flipped_bit_is_an_error(message in message(), bit in any::<proptest::sample::Index>()) {
        let mut frame = message.to_wire().expect("encodes").to_vec();
        let bit = bit.index(frame.len() * 8);
        frame[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(share::DisarmedShare::from_wire(&frame).is_err());
    }

    #[test]
    fn a_cut_frame_is_an_error(message in message(), cut in any::<proptest::sample::Index>()) {
        let frame = message.to_wire().expect("encodes");
        prop_assert!(share::DisarmedShare::from_wire(&frame[..cut.index(frame.len())]).is_err());
    }

    #[test]
    fn garbage_never_panics(frame in any::<Vec<u8>>()) {
        let sealed = |magic| [&[magic, 1][..], &blake3::hash(&frame).as_bytes()[..8], &frame].concat();
        let _ = share::DisarmedShare::from_wire(&sealed(b'S'));
        let _ = PartDescriptor::from_wire(&sealed(b'P'));
        let _ = share::DisarmedShare::from_wire(&frame);
    }
}

#[test]
fn a_newer_version_and_another_kind_are_refused_by_name() {
    assert!(matches!(PartDescriptor::from_wire(b"S\x01"), Err(WireError::Kind { .. })));
    assert!(matches!(PartDescriptor::from_wire(b""), Err(WireError::Kind { .. })));
    let newer = PartDescriptor::from_wire(b"P\x02");
    assert_eq!(newer, Err(WireError::Version { kind: "part descriptor", version: 2 }));
}

#[test]
fn the_first_version_of_a_descriptor_stays_readable() {
    // What version 1 wrote; a change of this test is a change of the wire form.
    let part = PartDescriptor {
        process: 1,
        n: 2,
        group: 0,
        run: 3,
        ordinal: 4,
        len: 300,
        tail_len: 100,
        tail_digest: Digest([1; 32]),
        digest: Digest([2; 32]),
        facts: RunFacts { update_count: 5, diff_sum: -6, min_time: 7, max_time: 8, uncompressed_bytes: 9 },
        piece_bytes: 4,
        schema: SchemaFingerprint(Digest([3; 32])),
    };
    let mut body = vec![1, 2, 0, 3, 4, 0xac, 2, 100];
    body.extend([1; 32]);
    body.extend([2; 32]);
    body.extend([5, 11, 7, 8, 9, 4]);
    body.extend([3; 32]);
    let frame = [&[b'P', 1][..], &blake3::hash(&body).as_bytes()[..8], &body].concat();
    assert_eq!(PartDescriptor::from_wire(&frame), Ok(part));
}
