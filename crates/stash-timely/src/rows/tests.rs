//! Roundtrips of both ways, what they agree on, and what is refused.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Instant};

use arrow::array::RecordBatchOptions;
use arrow::datatypes::DataType;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::*;
use crate::{columns_row, newtype_column, serde_row};

/// One struct, twice: the fast way and the easy way.
macro_rules! twins {
    ($(#[$meta:meta])* { $($field:ident: $column:ty),+ $(,)? }) => {
        $(#[$meta])*
        struct Fast { $($field: $column),+ }
        columns_row!(Fast { $($field: $column),+ });

        $(#[$meta])*
        struct Easy { $($field: $column),+ }
        serde_row!(Easy);

        impl From<Fast> for Easy {
            fn from(Fast { $($field),+ }: Fast) -> Easy {
                Easy { $($field),+ }
            }
        }
    };
}

twins!(
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    {
        id: u64,
        delta: i64,
        year: i32,
        count: u32,
        small: i8,
        byte: u8,
        short: i16,
        port: u16,
        paid: bool,
        customer: String,
        r#type: Option<String>,
        parent: Option<u64>,
        checked: Option<bool>,
    }
);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OrderId(u64);
newtype_column!(OrderId(u64));

/// Names that the macros' own code must not take for its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Columns {
    columns: OrderId,
    batch: Option<OrderId>,
    row: Vec<u8>,
    builder: Option<Vec<u8>>,
    fill: [u8; 3],
    at: Option<[u8; 16]>,
}
columns_row!(Columns {
    columns: OrderId,
    batch: Option<OrderId>,
    row: Vec<u8>,
    builder: Option<Vec<u8>>,
    fill: [u8; 3],
    at: Option<[u8; 16]>,
});

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum State {
    Open,
    Paid,
    #[serde(rename = "on its way")]
    Sent,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Name(String);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Address {
    street: String,
    number: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Nested {
    state: State,
    earlier: Option<State>,
    name: Name,
    address: Address,
    other: Option<Address>,
    lines: Vec<(String, u32)>,
    tags: Option<Vec<Option<State>>>,
    initial: char,
}
serde_row!(Nested);

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z]{0,12}", ".{0,8}", "[a-z]{40,90}"]
}

prop_compose! {
    fn fasts()(
        numbers in (any::<u64>(), any::<i64>(), any::<i32>(), any::<u32>()),
        smalls in (any::<i8>(), any::<u8>(), any::<i16>(), any::<u16>()),
        paid in any::<bool>(),
        customer in texts(),
        kind in proptest::option::of(texts()),
        parent in any::<Option<u64>>(),
        checked in any::<Option<bool>>(),
    ) -> Fast {
        let ((id, delta, year, count), (small, byte, short, port)) = (numbers, smalls);
        Fast { id, delta, year, count, small, byte, short, port, paid, customer, r#type: kind, parent, checked }
    }
}

prop_compose! {
    fn columns()(
        columns in any::<u64>(),
        batch in any::<Option<u64>>(),
        row in any::<Vec<u8>>(),
        builder in any::<Option<Vec<u8>>>(),
        fill in any::<[u8; 3]>(),
        at in any::<Option<[u8; 16]>>(),
    ) -> Columns {
        Columns { columns: OrderId(columns), batch: batch.map(OrderId), row, builder, fill, at }
    }
}

fn states() -> impl Strategy<Value = State> {
    prop_oneof![Just(State::Open), Just(State::Paid), Just(State::Sent)]
}

prop_compose! {
    fn addresses()(street in texts(), number in any::<Option<u16>>()) -> Address {
        Address { street, number }
    }
}

prop_compose! {
    fn nested()(
        state in states(),
        earlier in proptest::option::of(states()),
        name in texts(),
        address in addresses(),
        other in proptest::option::of(addresses()),
        lines in proptest::collection::vec((texts(), any::<u32>()), 0..4),
        tags in proptest::option::of(proptest::collection::vec(proptest::option::of(states()), 0..4)),
        initial in any::<char>(),
    ) -> Nested {
        Nested { state, earlier, name: Name(name), address, other, lines, tags, initial }
    }
}

fn batch_of<R: Row>(rows: &[R]) -> RecordBatch {
    batch(&mut R::builder().expect("it has a builder"), rows)
}

fn batch<R: Row>(builder: &mut R::Builder, rows: &[R]) -> RecordBatch {
    assert!(builder.is_empty());
    for row in rows {
        builder.append(row).expect("it fits");
    }
    assert_eq!(builder.len(), rows.len());
    let columns = builder.finish().expect("it finishes");
    assert_eq!((builder.len(), builder.bytes()), (0, 0), "finished is empty");
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    let schema = Arc::new(R::schema().expect("it has columns"));
    RecordBatch::try_new_with_options(schema, columns, &options).expect("the columns are the schema's")
}

/// There and back, twice with one builder, then a slice, then through what a stash makes of the columns.
fn roundtrip<R: Row + Debug + PartialEq>(rows: &[R]) {
    let mut builder = R::builder().expect("it has a builder");
    let _ = batch(&mut builder, rows);
    let batch = batch(&mut builder, rows);
    assert_eq!(R::read(&batch).expect("it reads"), rows);
    let (from, len) = (rows.len() / 3, rows.len() / 2);
    assert_eq!(R::read(&batch.slice(from, len)).expect("a slice reads"), rows[from..from + len]);
    let restored = row_schema::<R>().expect("a stash takes it").restore(&batch).expect("it restores");
    assert_eq!(R::read(&restored).expect("it reads"), rows);
}

fn bytes_of<R: Row>(rows: &[R]) -> usize {
    let mut builder = R::builder().expect("it has a builder");
    rows.iter().for_each(|row| builder.append(row).expect("it fits"));
    builder.bytes()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn roundtrip_of_a_struct_with_builders_of_its_own(rows in proptest::collection::vec(fasts(), 0..30)) {
        roundtrip(&rows);
    }

    #[test]
    fn roundtrip_of_every_kind_of_column(rows in proptest::collection::vec(columns(), 0..30)) {
        roundtrip(&rows);
    }

    #[test]
    fn roundtrip_of_nested_structs_through_serde(rows in proptest::collection::vec(nested(), 0..20)) {
        roundtrip(&rows);
    }

    #[test]
    fn roundtrip_of_tuples_and_values(rows in proptest::collection::vec(fasts(), 0..20)) {
        roundtrip(&rows.iter().map(|row| (row.id,)).collect::<Vec<_>>());
        roundtrip(&rows.iter().map(|row| (row.customer.clone(), row.parent, row.paid)).collect::<Vec<_>>());
        roundtrip(&rows.iter().map(|row| row.customer.clone()).collect::<Vec<_>>());
        roundtrip(&rows.iter().map(|row| row.r#type.clone()).collect::<Vec<_>>());
        roundtrip(&rows.iter().map(|row| Arc::<str>::from(&*row.customer)).collect::<Vec<_>>());
        roundtrip(&rows.iter().map(|_| ()).collect::<Vec<_>>());
    }

    #[test]
    fn agree_the_two_ways_on_one_struct(rows in proptest::collection::vec(fasts(), 0..30)) {
        let easy: Vec<Easy> = rows.iter().cloned().map(Easy::from).collect();
        check_schema::<Easy>(&row_schema::<Fast>().expect("columns")).expect("one schema");
        let fast_batch = batch_of(&rows);
        let easy_batch = batch_of(&easy);
        prop_assert_eq!(fast_batch.columns(), easy_batch.columns());
        prop_assert_eq!(bytes_of(&rows), bytes_of(&easy));
        // Each reads what the other wrote.
        prop_assert_eq!(Fast::read(&easy_batch).expect("it reads"), rows);
        prop_assert_eq!(Easy::read(&fast_batch).expect("it reads"), easy);
    }

    #[test]
    fn the_estimate_of_bytes_is_near_what_the_columns_hold(rows in proptest::collection::vec(fasts(), 8..60)) {
        let estimate = bytes_of(&rows);
        let columns = batch_of(&rows);
        let size = |column: &ArrayRef| column.to_data().get_slice_memory_size().expect("known");
        let held: usize = columns.columns().iter().map(size).sum();
        let slack = 9 * 13 * rows.len();
        prop_assert!(estimate + slack >= held && held + slack >= estimate, "{} and {}", estimate, held);
    }
}

#[test]
fn the_names_of_columns_are_those_of_the_fields() {
    let names = |schema: Schema| schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
    assert_eq!(names(<(u64, String)>::schema().expect("columns")), ["c0", "c1"]);
    assert_eq!(names(u64::schema().expect("columns")), ["c0"]);
    assert_eq!(names(<()>::schema().expect("columns")), Vec::<String>::new());
    let (fast, easy) = (Fast::schema().expect("columns"), Easy::schema().expect("columns"));
    assert_eq!(fast.field(10).name(), "type", "a raw identifier is a plain name");
    assert_eq!(names(fast), names(easy));
}

#[test]
fn enums_without_data_are_texts_wherever_they_stand() {
    let schema = Nested::schema().expect("columns");
    assert_eq!(schema.field(0).data_type(), &DataType::Utf8);
    assert_eq!(schema.field(1).data_type(), &DataType::Utf8);
    assert!(schema.field(1).is_nullable() && !schema.field(0).is_nullable());
    let DataType::List(item) = schema.field(6).data_type() else { panic!("{schema}") };
    assert_eq!((item.data_type(), item.is_nullable()), (&DataType::Utf8, true));
}

#[test]
fn columns_of_another_type_name_or_number_are_refused_by_name() {
    let pairs = batch_of(&[(1_u64, "a".to_owned())]);
    assert!(
        matches!(<(u64, u64)>::read(&pairs), Err(RowError::OtherColumn { column, .. }) if column == "c1")
    );
    assert!(matches!(u64::read(&pairs), Err(RowError::OtherCount { wanted: 1, found: 2 })));
    assert!(matches!(Easy::read(&pairs), Err(RowError::OtherCount { .. })));
    assert!(matches!(Columns::read(&pairs.project(&[0]).expect("one")), Err(RowError::OtherCount { .. })));
    let other = check_schema::<(u64, Option<String>)>(&row_schema::<(u64, String)>().expect("columns"));
    let told = other.expect_err("null is not allowed there").to_string();
    assert!(
        told.contains("column \"c1\" of Utf8 or null where the sink has column \"c1\" of Utf8"),
        "{told}"
    );
    let told = check_schema::<u64>(&row_schema::<(u64, u64)>().expect("columns")).expect_err("one less");
    assert!(matches!(told, RowError::OtherSchema { position: 1, .. }), "{told}");
}

#[test]
fn a_null_where_the_row_needs_a_value_is_refused_and_not_read_as_zero() {
    let rows = [Some(1_u64), None];
    let nullable = batch_of(&rows);
    assert!(matches!(u64::read(&nullable), Err(RowError::Null { column }) if column == "c0"));
    assert_eq!(u64::read(&nullable.slice(0, 1)).expect("no null in it"), [1]);
}

#[test]
fn types_that_serde_cannot_tell_the_columns_of_are_refused() {
    macro_rules! refused {
        ($($name:ident { $field:ident: $type:ty } $error:pat),+ $(,)?) => {$({
            #[derive(Serialize, Deserialize)]
            struct $name { $field: $type }
            serde_row!($name);
            let told = $name::schema().expect_err(stringify!($name));
            assert!(matches!(told, $error), "{told}");
            assert!($name::builder().is_err());
        })+};
    }
    #[derive(Serialize, Deserialize)]
    enum Shape {
        Circle(u32),
        Square { side: u32 },
    }
    refused!(
        Maps { map: BTreeMap<String, u64> } RowError::Unfit { .. },
        Shapes { shape: Shape } RowError::Unfit { .. },
        Hidden { _time: u64 } RowError::Unfit { .. },
        Wide { number: u128 } RowError::Untraced { .. },
        Nothing { nothing: Option<()> } RowError::Untraced { .. },
        Loop { next: Option<Box<Loop>> } RowError::Untraced { .. },
    );
    let _ = (Shape::Circle(0), Shape::Square { side: 0 });
}

#[test]
fn a_builder_takes_no_more_than_offsets_can_tell_and_stays_whole() {
    let mut fill = Fill::default();
    fill.admit(0x7fff_fff0).expect("it fits");
    assert!(matches!(fill.admit(16), Err(RowError::Full { bytes: 16, held: 0x7fff_fff0, .. })));
    assert_eq!((fill.rows(), fill.bytes()), (1, 0x7fff_fff0), "what was refused is not counted");
    fill.admit(15).expect("what fits goes in");
    assert!(fill.admit(usize::MAX).is_err());
}

/// A number that is written as a text once in a while, which is no column of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Fitful(Option<u64>);

impl Serialize for Fitful {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(13) => serializer.serialize_some("thirteen"),
            number => number.serialize(serializer),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Inner {
    name: String,
    parts: Vec<Fitful>,
    paid: Option<bool>,
    small: i8,
}

/// Fits its columns unless one of its numbers is thirteen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Nearly {
    id: u64,
    flag: bool,
    name: String,
    inner: Inner,
    other: Option<Inner>,
    pairs: Vec<(String, Option<String>)>,
    inners: Vec<Inner>,
    state: Option<State>,
    numbers: (Fitful, u32),
    last: Fitful,
}
serde_row!(Nearly);

fn fitful() -> impl Strategy<Value = Fitful> {
    prop_oneof![8 => (0..13_u64).prop_map(Some), 3 => Just(None), 1 => Just(Some(13))].prop_map(Fitful)
}

prop_compose! {
    fn inners()(
        name in texts(),
        parts in proptest::collection::vec(fitful(), 0..3),
        paid in any::<Option<bool>>(),
        small in any::<i8>(),
    ) -> Inner {
        Inner { name, parts, paid, small }
    }
}

prop_compose! {
    fn nearly()(
        (id, flag) in (any::<u64>(), any::<bool>()),
        name in texts(),
        inner in inners(),
        other in proptest::option::of(inners()),
        pairs in proptest::collection::vec((texts(), proptest::option::of(texts())), 0..3),
        inners in proptest::collection::vec(inners(), 0..3),
        state in proptest::option::of(states()),
        numbers in (fitful(), any::<u32>()),
        last in fitful(),
    ) -> Nearly {
        Nearly { id, flag, name, inner, other, pairs, inners, state, numbers, last }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Named for what was found: after a row that did not fit every other was refused, and those before it were lost.
    #[test]
    fn oracle_a_row_that_serde_does_not_fit_is_refused_alone(rows in proptest::collection::vec(nearly(), 0..30)) {
        let fits = |row: &Nearly| {
            let bad = Fitful(Some(13));
            let inner = |inner: &Inner| inner.parts.contains(&bad);
            ![&row.last, &row.numbers.0].contains(&&bad)
                && !row.inners.iter().chain([&row.inner]).chain(&row.other).any(inner)
        };
        let mut builder = Nearly::builder().expect("a builder");
        for _ in 0..2 {
            let mut bytes = 0;
            for row in &rows {
                match builder.append(row) {
                    Ok(()) => prop_assert!(fits(row)),
                    Err(RowError::Serde { .. }) => prop_assert!(!fits(row)),
                    Err(other) => panic!("{other}"),
                }
                prop_assert!(builder.bytes() >= bytes);
                bytes = builder.bytes();
            }
            let fitting: Vec<Nearly> = rows.iter().filter(|row| fits(row)).cloned().collect();
            prop_assert_eq!((builder.len(), bytes), (fitting.len(), bytes_of(&fitting)));
            let columns = builder.finish().expect("it finishes");
            let expected = batch_of(&fitting);
            prop_assert_eq!(&columns[..], expected.columns());
        }
    }
}

#[test]
fn of_many_rows_that_do_not_fit_each_is_refused_and_the_others_are_there_in_order() {
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Numbered {
        at: u64,
        number: Fitful,
    }
    serde_row!(Numbered);
    let mut builder = Numbered::builder().expect("a builder");
    for at in 0..2_000 {
        let number = Fitful(Some(if at % 3 == 1 { 13 } else { 0 }));
        assert_eq!(builder.append(&Numbered { at, number }).is_ok(), at % 3 != 1);
    }
    let columns = builder.finish().expect("it finishes");
    let batch =
        RecordBatch::try_new(Arc::new(Numbered::schema().expect("columns")), columns).expect("a batch");
    let read = Numbered::read(&batch).expect("it reads").into_iter().map(|row| row.at).collect::<Vec<_>>();
    assert_eq!(read, (0..2_000).filter(|at| at % 3 != 1).collect::<Vec<_>>());
}

#[test]
fn every_kind_of_column_that_serde_traces_keeps_its_rows_when_one_does_not_fit() {
    /// Written as such, not as a list.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Bytes(Vec<u8>);
    impl Serialize for Bytes {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&self.0)
        }
    }
    impl<'de> Deserialize<'de> for Bytes {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
            struct Reads;
            impl serde::de::Visitor<'_> for Reads {
                type Value = Bytes;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("bytes")
                }
                fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                    Ok(Bytes(bytes.to_vec()))
                }
            }
            deserializer.deserialize_bytes(Reads)
        }
    }
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Kinds {
        signed: (i8, i16, i32, i64),
        unsigned: (u8, u16, u32, u64),
        floats: (f32, f64),
        flag: bool,
        character: char,
        text: String,
        bytes: Option<Bytes>,
        list: Vec<Option<bool>>,
        state: State,
        last: Fitful,
    }
    serde_row!(Kinds);
    let row = |number: u8| Kinds {
        signed: (-1, -2, -3, -i64::from(number)),
        unsigned: (number, 2, 3, 4),
        floats: (0.5, f64::from(number)),
        flag: true,
        character: 'x',
        text: "text".to_owned(),
        bytes: Some(Bytes(vec![number; 3])),
        list: vec![None, Some(true)],
        state: State::Sent,
        last: Fitful(Some(u64::from(number))),
    };
    let mut builder = Kinds::builder().expect("a builder");
    for number in 11..15 {
        assert_eq!(builder.append(&row(number)).is_ok(), number != 13);
    }
    let columns = builder.finish().expect("nothing is lost");
    let batch = RecordBatch::try_new(Arc::new(Kinds::schema().expect("columns")), columns).expect("a batch");
    assert_eq!(Kinds::read(&batch).expect("it reads"), [11, 12, 14].map(row));
}

/// `cargo test -p stash-timely --release -- --ignored --nocapture cost_of_a_row`
#[test]
#[ignore = "measures; prints nanoseconds a row"]
fn cost_of_a_row() {
    const ROWS: u32 = 1_000_000;
    fn measure<R: Row>(name: &str, make: impl Fn(u32) -> R) {
        let rows: Vec<R> = (0..ROWS).map(make).collect();
        let mut builder = R::builder().expect("a builder");
        let mut best = (f64::MAX, f64::MAX);
        for _ in 0..5 {
            let start = Instant::now();
            let mut held = 0;
            for row in &rows {
                builder.append(row).expect("it fits");
                held = builder.bytes();
            }
            let columns = builder.finish().expect("it finishes");
            best.0 = best.0.min(start.elapsed().as_secs_f64());
            let schema = Arc::new(R::schema().expect("columns"));
            let batch = RecordBatch::try_new(schema, columns).expect("a batch");
            let start = Instant::now();
            let read = R::read(&batch).expect("it reads");
            best.1 = best.1.min(start.elapsed().as_secs_f64());
            assert!(read.len() == rows.len() && held > 0);
        }
        let nanos = |seconds: f64| seconds * 1e9 / f64::from(ROWS);
        println!("{name:>12}: append {:6.1} ns a row, read {:6.1} ns a row", nanos(best.0), nanos(best.1));
    }
    let make = |n: u32| Fast {
        id: n.into(),
        delta: -i64::from(n),
        year: 2000,
        count: n,
        small: 1,
        byte: 2,
        short: 3,
        port: 4,
        paid: n.is_multiple_of(2),
        customer: format!("customer number {n}"),
        r#type: n.is_multiple_of(3).then(|| "sort".to_owned()),
        parent: n.is_multiple_of(5).then_some(7),
        checked: None,
    };
    measure("fast, 13", make);
    measure("easy, 13", |n| Easy::from(make(n)));
    measure("(u64,String)", |n| (u64::from(n), format!("customer number {n}")));
    measure("u64", u64::from);
}
