//! What the corpora begin with: valid parts of several schemas, frames of each kind, rows of each table, schemas,
//! inline runs, ids, command lines, change files. The example `seeds` writes them out.
//!
//! The same build makes the same seeds, byte by byte.

use bytes::Bytes;
use stash_part::encode_inline;
use stash_types::{
    DataflowError, Description, DisarmedShare, Frontier, IncarnationId, RunFacts, Share, ShareMessage,
    SinkId, WorkerIndex, wire::Wire,
};
use uuid::Uuid;

use crate::catalog_row::{INLINE, MARKER, PLAN, SCHEMA, cell};
use crate::descriptor::{ADDRESSED, FRESH_DIGEST};
use crate::ids::{CSV, DECLARED, DIFFS, NAMES, NDJSON, SPEC, URL, WORDS};
use crate::input::Output;
use crate::part::{FRESH_LENGTH, FRESH_ROW_GROUPS, FRESH_TAIL};
use crate::rows::{Honest, SCHEMAS, honest, schemas, updates};

type Seeds = Vec<(String, Vec<u8>)>;

/// The body of a frame, without magic, version and seal.
fn body(value: &impl Wire) -> Vec<u8> {
    value.to_wire().expect("a seed can be written").split_off(10).to_vec()
}

/// Seeds of the target `part`.
pub fn part() -> Seeds {
    let seed = |i: usize, honest: &Honest, flags: u8| {
        let input = Output::of(&[honest.schema as u8, flags]).stretch(&body(&honest.part));
        (format!("valid-{i}-flags-{flags}"), input.bytes(&honest.object).done())
    };
    let all = FRESH_ROW_GROUPS | FRESH_TAIL | FRESH_LENGTH;
    let parts = || honest().iter().enumerate();
    parts().map(|(i, part)| seed(i, part, 0)).chain(parts().map(|(i, part)| seed(i, part, all))).collect()
}

/// Seeds of the target `descriptor`.
pub fn descriptor() -> Seeds {
    let mut seeds = Seeds::new();
    for (i, honest) in honest().iter().enumerate() {
        seeds.push((format!("forged-{i}"), Output::of(&[0, i as u8]).bytes(&body(&honest.part)).done()));
    }
    let facts = honest().iter().map(|honest| honest.part.facts).collect::<Vec<RunFacts>>();
    for (i, three) in facts.windows(3).enumerate() {
        let three = [three[0], three[1], three[2]];
        let three = postcard::to_stdvec(&three).expect("a seed can be written");
        seeds.push((format!("facts-{i}"), Output::of(&[1]).bytes(&three).done()));
    }
    for (i, share) in shares().iter().enumerate() {
        for flags in [0, ADDRESSED, ADDRESSED | FRESH_DIGEST] {
            let input = Output::of(&[2, (i % SCHEMAS) as u8, flags]).bytes(&body(share));
            seeds.push((format!("share-{i}-flags-{flags}"), input.done()));
        }
    }
    seeds
}

/// Shares of every kind; those with runs come first, one for each schema.
fn shares() -> Vec<DisarmedShare> {
    let inline = |schema| encode_inline(&updates(schema, 6, 3), 1).expect("a seed can be encoded");
    let parts = || honest().iter().map(|honest| honest.part.clone()).collect::<Vec<_>>();
    let rest = [
        Share::Stashed(parts()[..1].to_vec()),
        Share::Stashed(parts()[..4].to_vec()),
        Share::Stashed(Vec::new()),
        Share::Empty,
        Share::Failed { reason: "the disk is full".into() },
        Share::Dropped,
    ];
    let shares = (0..SCHEMAS).map(|schema| Share::Inline(inline(schema))).chain(rest);
    shares
        .enumerate()
        .map(|(i, share)| ShareMessage {
            sink: SinkId::from_uuid(Uuid::from_u128(42)),
            incarnation: IncarnationId::from_uuid(Uuid::from_u128(44)),
            description: Description::new(Frontier::MIN, Frontier::EMPTY).expect("it covers all times"),
            floor: Frontier::at(i as u64),
            worker: WorkerIndex(i as u32),
            share,
            poisoned: (i % 4 == 3).then(|| DataflowError { at: 7, message: "division by zero".into() }),
        })
        .collect()
}

/// Seeds of the target `frame`.
pub fn frame() -> Seeds {
    let mut seeds = Seeds::new();
    for (i, share) in shares().iter().enumerate() {
        let frame = share.to_wire().expect("a seed can be written");
        seeds.push((format!("share-{i}"), Output::of(&[0]).bytes(&frame).done()));
        seeds.push((format!("share-body-{i}"), Output::of(&[1]).bytes(&body(share)).done()));
    }
    for (i, honest) in honest().iter().take(3).enumerate() {
        let frame = honest.part.to_wire().expect("a seed can be written");
        seeds.push((format!("part-{i}"), Output::of(&[2]).bytes(&frame).done()));
        seeds.push((format!("part-body-{i}"), Output::of(&[3]).bytes(&body(&honest.part)).done()));
    }
    seeds
}

/// Cells, being written.
trait Cells {
    fn null(self) -> Self;
    fn int(self, value: i64) -> Self;
    fn text(self, text: &str) -> Self;
    fn blob(self, bytes: &[u8]) -> Self;
    fn at(self, time: u64) -> Self;
}

impl Cells for Output {
    fn null(self) -> Output {
        self.bytes(&[cell::NULL])
    }
    fn int(self, value: i64) -> Output {
        self.bytes(&[cell::INT]).bytes(&value.to_le_bytes())
    }
    fn text(self, text: &str) -> Output {
        self.bytes(&[cell::TEXT]).stretch(text.as_bytes())
    }
    fn blob(self, bytes: &[u8]) -> Output {
        self.bytes(&[cell::BLOB]).stretch(bytes)
    }
    fn at(self, time: u64) -> Output {
        self.blob(&time.to_be_bytes())
    }
}

fn id(letter: char) -> String {
    format!("{letter}{}", Uuid::from_u128(42))
}

fn key() -> String {
    format!("{}/{}/{:016x}-{:016x}-4-5.parquet", id('s'), id('i'), 3, u64::MAX)
}

/// Seeds of the target `catalog_row`.
pub fn catalog_row() -> Seeds {
    let table = |table: u8| Output::of(&[table]);
    let facts = |version: u8| {
        postcard::to_extend(&honest()[3].part.facts, vec![version]).expect("a seed can be written")
    };
    let run = encode_inline(&updates(1, 6, 3), 1).expect("a seed can be encoded");
    let sink = |dropped: bool| {
        let bytes = schemas()[4].to_bytes();
        let row = table(0).text(&id('k')).text("orders").blob(&bytes).blob(&[7; 32]).at(5).at(u64::MAX);
        let row = row.int(0).null().int(1000).int(1_700_000_000_000);
        if dropped { row.int(1_700_000_000_001) } else { row.null() }
    };
    let head = |status: &str, poisoned: bool| {
        let row = table(1).text(&id('k')).at(9).int(3).int(2).text(status);
        let row = if poisoned { row.at(8).text("division by zero") } else { row.null().null() };
        row.at(0).at(0).int(17)
    };
    let incarnation = |outcome: Option<&str>| {
        let row = table(2).text(&id('k').replace('k', "i")).text(&id('k')).text("replica-1").text(&id('l'));
        let row = row.at(5).at(9).null();
        let row = match outcome {
            Some(outcome) => row.at(5).at(9).text(outcome).at(7),
            None => row.null().null().null().null(),
        };
        row.int(1).int(2)
    };
    let batch = table(4).text(&id('b')).int(1).at(5).at(9).at(9).at(3).at(9).text(&id('i')).blob(&facts(1));
    let inline = table(6).int(1).int(1).blob(&run.payload).blob(&run.digest.0);
    let inline = inline.blob(&facts(1)).blob(&run.schema.0.0);
    let frame = honest()[3].part.to_wire().unwrap_or_else(|_| Bytes::new());
    let mut seeds: Vec<(String, Output)> = vec![
        ("sink".into(), sink(false)),
        ("sink-dropped".into(), sink(true)),
        ("head".into(), head("open", false)),
        ("head-complete".into(), head("complete", false)),
        ("head-poisoned".into(), head("poisoned", true)),
        ("head-dropped".into(), head("dropped", false)),
        ("incarnation".into(), incarnation(None)),
        ("incarnation-accepted".into(), incarnation(Some("accepted"))),
        ("incarnation-trimmed".into(), incarnation(Some("trimmed"))),
        ("commit".into(), table(3).int(17).int(1).at(9).int(3)),
        ("batch".into(), batch.int(1_700_000_000_000)),
        ("part".into(), table(5).text(&key()).int(1).blob(&frame)),
        ("inline".into(), inline),
        ("consumer".into(), table(7).text("me").at(9).text(&id('e')).int(5)),
        ("history".into(), table(9).int(5).text(&id('k')).text(&id('i')).text(&key()).text("put").text("")),
        ("history-bare".into(), table(9).int(5).text(&id('k')).null().null().text("drop").text("by hand")),
    ];
    for reason in ["dropped", "trimmed", "released", "expired", "sink-dropped", "surrendered", "swept"] {
        let row = table(8).text(&key()).text(&id('k')).text(reason).int(5).int(0);
        seeds.push((format!("deletion-{reason}"), row));
    }
    for (i, schema) in schemas().iter().enumerate() {
        seeds.push((format!("schema-{i}"), Output::of(&[SCHEMA]).bytes(&schema.to_bytes())));
        let run = encode_inline(&updates(i, 6, 3), 1).expect("a seed can be encoded");
        let facts = postcard::to_stdvec(&run.facts).expect("a seed can be written");
        let input = Output::of(&[INLINE, i as u8]).stretch(&facts).bytes(&run.payload);
        seeds.push((format!("inline-run-{i}"), input));
    }
    for (name, format, catalog) in [("ours", 1, 'c'), ("newer", 2, 'c'), ("no-catalog", 1, 'k')] {
        let json = format!("{{\"format\":{format},\"catalog\":\"{}\"}}\n", id(catalog));
        seeds.push((format!("marker-{name}"), Output::of(&[MARKER]).bytes(json.as_bytes())));
    }
    for (name, scope) in [("whole", "null".to_owned()), ("one-shard", format!("\"{}\"", id('s')))] {
        let (catalog, key) = (id('c'), key());
        let plan = format!(
            "{{\"plan\":{{\"format\":1,\"catalog\":\"{catalog}\",\"store\":\"file:///srv\",\"scope\":{scope},\
            \"made_ms\":5}}}}\n\
            {{\"garbage\":{{\"key\":\"{key}\",\"reason\":\"incarnation_closed\",\"bytes\":1234}}}}\n\
            {{\"left_over_upload\":{{\"key\":\"{key}\",\"token\":\"7\",\"reason\":\"key_settled\",\"bytes\":12}}}}\n\
            {{\"end\":{{\"garbage\":{{\"entries\":1,\"bytes\":1234}},\"left_over_uploads\":{{\"entries\":1,\
            \"bytes\":12}}}}}}\n"
        );
        seeds.push((format!("plan-{name}"), Output::of(&[PLAN]).bytes(plan.as_bytes())));
    }
    seeds.into_iter().map(|(name, input)| (name, input.done())).collect()
}

const COMMANDS: [&str; 14] = [
    "--stash\nfile:///srv/stash\nload\nchanges.csv\n--sink\norders\n--time-column\nt\n--diff-column\nd",
    "--stash\n./stash\nload\nchanges.json\n--format\nndjson\n--sink\norders\n--time-column\nt\n--schema\nid:int64",
    "load\nx.parquet\n--sink=a\n--time-column=t\n--workers\n4\n--batch-every\n10\n--resume\n--complete",
    "load\nx.csv\n--sink\na\n--time-column\nt\n--sort\n--replica\nr1\n--as-of\n18446744073709551614",
    "read\norders\n--consumer\nme\n--follow\n--limit-batches\n3\n--format\ncsv",
    "read\n--sink\norders\n--from\n7\n-o\nout.parquet\n--json",
    "read\norders\n--start\nearliest",
    "sinks\n--dropped\n-vv",
    "chain\norders",
    "cat\ns/i/x.parquet\n--format\nndjson",
    "consumers\norders\n--forget\nme\n--commit",
    "drop\norders\n--commit",
    "history\norders\n--limit\n0",
    "demo\n--scale\n0.5\n--seed\n3\n--workers\n64\n--memory-mib\n16",
];

/// Seeds of the target `ids`.
pub fn ids() -> Seeds {
    let mut seeds: Vec<(String, Output)> = Vec::new();
    let mut add = |name: String, kind: u8, text: &str| {
        seeds.push((name, Output::of(&[kind]).bytes(text.as_bytes())));
    };
    for letter in ['c', 'k', 's', 'i', 'b', 'l', 'e', 'm'] {
        add(format!("id-{letter}"), NAMES, &id(letter));
    }
    for (name, text) in [("label", "orders-2.v1"), ("part-key", &key()), ("marker", "stash.json")] {
        add(name.into(), NAMES, text);
    }
    for (i, url) in
        ["file:///srv/a%20stash", "memory://", "s3://bucket/prefix", "./here", "/srv"].into_iter().enumerate()
    {
        add(format!("url-{i}"), URL, url);
    }
    for (i, words) in COMMANDS.into_iter().enumerate() {
        add(format!("words-{i}"), WORDS, words);
    }
    let spec = "a:bool,b:int8?,c:int64,\"d, \"\"e\"\"\":uint64?,f:float32,g:float64,h:utf8?,i:binary,j:date,\
        k:timestamp(us)?,l:decimal(20,4)";
    for (i, spec) in
        [spec, "id:int64,name:utf8?", "x:Decimal128(10, 2), y : Timestamp(µs)"].into_iter().enumerate()
    {
        add(format!("spec-{i}"), SPEC, spec);
    }
    let csv = "t,d,a,b,c\n1,1,x,0.5,true\n1,-1,\"q \"\"uoted\"\"\",,false\n2,3,,1e300,\n\n,,\n";
    let csv_typed = "t,d,n,x,s,b,y,z,e\n\
        0,1,-5,-0.0,\"\",00ff,2024-02-29,2024-02-29T12:00:00.000001,12345.6789\n\
        18446744073709551614,-2,,NaN,\"a,\nb\",,,,-0.0001\n";
    let typed = "n:int64?,x:float64,s:utf8,b:binary?,y:date?,z:timestamp?,e:decimal(20,4)";
    let ndjson = "{\"t\":1,\"d\":1,\"a\":\"x\",\"b\":0.5}\n{\"t\":\"2\",\"d\":-1,\"b\":null,\"a\":\"\\u0000ü\"}\n\n\
        {\"_progress\":2}\n{\"t\":3,\"d\":1,\"c\":true,\"n\":18446744073709551615}\n{\"_progress\":\"end\"}\n";
    let ndjson_typed = "{\"t\":0,\"n\":-5,\"x\":\"-inf\",\"s\":\"\",\"b\":\"00ff\",\"y\":\"2024-02-29\",\
        \"z\":\"2024-02-29T12:00:00+02:00\",\"e\":\"1.5\"}\n{\"t\":1,\"x\":1e-7,\"s\":\"é\",\"e\":12}\n";
    let mut file = |name: &str, kind: u8, flags: u8, spec: &str, text: &str| {
        let input = Output::of(&[kind, flags]).stretch(spec.as_bytes()).bytes(text.as_bytes());
        seeds.push((name.into(), input));
    };
    file("csv-inferred", CSV, DIFFS, "", csv);
    file("csv-no-diffs", CSV, 0, "", "t,a\n1,007\n2,+1\n3,9007199254740993\n4,0.1\n");
    file("csv-typed", CSV, DIFFS | DECLARED, typed, csv_typed);
    file("csv-mark", CSV, DIFFS, "", "\u{feff}t,d,a\r\n1,1,x\r\n2,1,\"\"\r\n");
    file("ndjson-inferred", NDJSON, DIFFS, "", ndjson);
    file("ndjson-typed", NDJSON, DECLARED, typed, ndjson_typed);
    seeds.into_iter().map(|(name, input)| (name, input.done())).collect()
}
