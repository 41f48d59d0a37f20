//! Target `catalog_row`: what rests in a catalog and beside it, as somebody may have damaged or edited it.
//!
//! Input: a byte that says what it is. For rows, cells follow, each a byte for its type and its value.
//!
//! - A row is a value, or [`CatalogError::Damaged`] that names the column; never another error.
//! - Ids, names, keys and frontiers that are read are exactly what stands there: one spelling each.
//! - A schema that is accepted is the same when written again, and can carry runs and parts.
//! - An inline run with a right digest holds what it declares, and no more than it declares.
//! - A marker is taken for ours only if it is.
//! - A plan of a sweep that is read to its end is the same when it is written again.

use std::cell::RefCell;

use bytes::Bytes;
use stash::{PlanReader, PlanWriter, Planned};
use stash_blob::{BlobStore, ObjectBlobs, StashMarker, claim};
use stash_catalog::CatalogError;
use stash_catalog::testing::{Cell, Probed, RowProbe, Table};
use stash_part::{EncodeOptions, PartEncoder, PartLayout, RowSchema, Sorted, decode_inline, encode_inline};
use stash_types::{BlobKey, CatalogId, Digest, Frontier, InlineRun, RunFacts, wire::Wire};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use crate::input::Input;
use crate::rows::{SCHEMAS, meta, schemas};

/// Behind the tables: a row schema.
pub const SCHEMA: u8 = 10;
/// An inline run: row schema, facts behind their length, payload.
pub const INLINE: u8 = 11;
/// The marker of a prefix.
pub const MARKER: u8 = 12;
/// The plan of a sweep.
pub const PLAN: u8 = 13;
/// How many kinds of input there are.
const KINDS: u8 = 14;

/// The cell types of an input.
pub mod cell {
    /// A null.
    pub const NULL: u8 = 0;
    /// An integer of eight bytes.
    pub const INT: u8 = 1;
    /// A fraction of eight bytes.
    pub const REAL: u8 = 2;
    /// Text behind its length.
    pub const TEXT: u8 = 3;
    /// Bytes behind their length.
    pub const BLOB: u8 = 4;
}

thread_local! {
    static WORLD: RefCell<(Runtime, RowProbe)> = RefCell::new(world());
}

fn world() -> (Runtime, RowProbe) {
    let runtime = Builder::new_current_thread().build().expect("a runtime starts");
    let probe = runtime.block_on(RowProbe::open()).expect("a probe opens");
    (runtime, probe)
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.u8() % KINDS {
        SCHEMA => schema(input.rest()),
        INLINE => inline(input),
        MARKER => marker(input.rest()),
        PLAN => plan(input.rest()),
        table => row(Table::ALL[usize::from(table)], input),
    }
}

fn cells(mut input: Input<'_>) -> Vec<Cell> {
    let mut cells = Vec::new();
    while !input.is_empty() && cells.len() < 16 {
        cells.push(match input.u8() % 5 {
            cell::INT => Cell::Int(input.u64() as i64),
            cell::REAL => Cell::Real(f64::from_bits(input.u64())),
            cell::TEXT => Cell::Text(input.stretch().to_vec()),
            cell::BLOB => Cell::Blob(input.stretch().to_vec()),
            _ => Cell::Null,
        });
    }
    cells
}

fn row(table: Table, input: Input<'_>) {
    let cells = cells(input);
    let read = WORLD.with_borrow_mut(|(runtime, probe)| runtime.block_on(probe.read(table, &cells)));
    let read = match read {
        Ok(read) => read,
        Err(CatalogError::Damaged { what, .. }) => {
            assert!(what.contains("column "), "no column is named: {what}");
            return;
        }
        Err(other) => panic!("a damaged row of {table:?} is no failure of the catalog: {other:?}"),
    };
    let spelled = |column: &str, value: &dyn std::fmt::Display| {
        let at = table.columns().iter().position(|name| *name == column).expect("the column is known");
        assert_eq!(cells[at], Cell::Text(value.to_string().into_bytes()), "{column} has another spelling");
    };
    let stands = |column: &str, frontier: Frontier| {
        let at = table.columns().iter().position(|name| *name == column).expect("the column is known");
        assert_eq!(cells[at], Cell::Blob(frontier.to_be_bytes().to_vec()), "{column} is another frontier");
    };
    match read {
        Probed::Sink(row) => {
            spelled("id", &row.spec.id);
            spelled("name", &row.spec.name);
            stands("as_of", Frontier::at(row.spec.as_of));
            stands("up_to", row.spec.up_to);
            assert_ne!(row.spec.as_of, u64::MAX, "the empty frontier is no time");
            schema(&row.spec.schema);
        }
        Probed::Head(row) => {
            spelled("sink", &row.sink);
            stands("upper", row.upper);
            stands("released", row.released);
            stands("expired", row.expired);
        }
        Probed::Incarnation(row) => {
            spelled("id", &row.id);
            spelled("sink", &row.sink);
            spelled("replica", &row.replica);
            spelled("launch", &row.launch);
            stands("resolved", row.resolved);
        }
        Probed::Committed(row) => stands("commit_upper", row.upper),
        Probed::Batch(row) => {
            spelled("id", &row.id);
            spelled("incarnation", &row.incarnation);
            assert!(row.lower < row.upper && row.upper <= row.extent, "a batch that covers no time");
        }
        Probed::Part(_, row) => {
            let again = row.descriptor.to_wire().expect("what was read can be written");
            assert_eq!(Wire::from_wire(&again).as_ref(), Ok(&row.descriptor));
        }
        Probed::Inline(_, run) => {
            assert_eq!(Digest::of(&run.payload), run.digest, "a payload without its digest");
            schemas().iter().for_each(|schema| drop(decode_inline(schema, &run)));
        }
        Probed::Consumer(row) => {
            spelled("name", &row.name);
            spelled("session", &row.session);
            stands("acked", row.acked);
        }
        Probed::Deletion(row) => {
            spelled("key", &row.key);
            spelled("sink", &row.sink);
        }
        Probed::History(row) => spelled("sink", &row.sink),
    }
}

fn schema(bytes: &[u8]) {
    let Ok(schema) = RowSchema::from_bytes(bytes) else { return };
    let again = RowSchema::from_bytes(&schema.to_bytes()).expect("what was read can be read again");
    assert_eq!(again.fingerprint(), schema.fingerprint(), "written again it is another schema");
    assert_eq!(again.row_schema().fields(), schema.row_schema().fields());
    // What is accepted here is refused nowhere later.
    let none = Sorted::empty(&schema);
    let run = encode_inline(&none, 0).expect("an accepted schema carries an inline run");
    assert_eq!(decode_inline(&schema, &run).map(|updates| updates.num_rows()), Ok(0));
    let encoder = PartEncoder::new(&schema, meta(), EncodeOptions::default());
    let encoded = encoder.and_then(PartEncoder::finish).expect("an accepted schema carries a part");
    let part = encoded.descriptor(0, 0);
    PartLayout::parse(&schema, &part, encoded.chunks.concat().into()).expect("and the part is read");
    schema.restore(none.batch()).expect("and given back as it was declared");
}

fn inline(mut input: Input<'_>) {
    let schema = &schemas()[usize::from(input.u8()) % SCHEMAS];
    let Ok(facts) = postcard::from_bytes::<RunFacts>(input.stretch()) else { return };
    let payload = Bytes::copy_from_slice(input.rest());
    let digest = Digest::of(&payload);
    let run = InlineRun { group: 0, payload, digest, facts, schema: schema.fingerprint() };
    let Ok(updates) = decode_inline(schema, &run) else { return };
    let found = updates.facts();
    assert_eq!((found.update_count, found.diff_sum), (facts.update_count, facts.diff_sum));
    assert!(!updates.diffs().contains(&0), "a diff of zero");
    let max = facts.uncompressed_bytes.max(run.payload.len() as u64);
    let held = updates.memory_bytes();
    assert!(held as u64 <= max, "{held} bytes came out of {}, declared as {facts:?}", run.payload.len());
    let again = encode_inline(&updates, 0).expect("what was read can be written");
    let again = decode_inline(schema, &again).expect("and read again");
    assert_eq!(again.batch(), updates.batch(), "written and read again they are other updates");
}

fn marker(json: &[u8]) {
    let ours = StashMarker { format: stash_blob::FORMAT, catalog: CatalogId::from_uuid(Uuid::from_u128(42)) };
    let claimed = WORLD.with_borrow_mut(|(runtime, _)| {
        runtime.block_on(async {
            let store = ObjectBlobs::memory();
            let put = store.put_new(&BlobKey::stash_json(), vec![Bytes::copy_from_slice(json)]).await;
            assert!(put.is_ok(), "memory takes it");
            claim(&store, &ours).await
        })
    });
    if claimed.is_ok() {
        let text = String::from_utf8_lossy(json);
        assert!(text.contains(&ours.catalog.to_string()), "a prefix of somebody else is taken: {text}");
    }
}

fn read_plan(bytes: &[u8]) -> Option<(PlanReader<&[u8]>, Vec<Planned>)> {
    let mut reader = PlanReader::new(bytes).ok()?;
    let mut planned = Vec::new();
    while let Some(next) = reader.next_planned().ok()? {
        assert!(reader.header().scope.is_none_or(|scope| scope == next.key.shard), "outside of its scope");
        planned.push(next);
    }
    Some((reader, planned))
}

fn plan(bytes: &[u8]) {
    let Some((reader, planned)) = read_plan(bytes) else { return };
    let mut writer = PlanWriter::new(Vec::new(), reader.header()).expect("memory takes it");
    planned.iter().for_each(|planned| writer.add(planned).expect("memory takes it"));
    let (written, totals) = writer.finish().expect("memory takes it");
    assert_eq!(totals, reader.totals(), "written again it counts otherwise");
    let (again, same) = read_plan(&written).expect("what was written is read");
    assert_eq!((again.header(), &same), (reader.header(), &planned), "written again it is another plan");
    // Cut anywhere, it is no plan.
    let cut = bytes.len() / 2;
    assert!(read_plan(&bytes[..cut]).is_none(), "a plan that was cut short is read to an end");
}
