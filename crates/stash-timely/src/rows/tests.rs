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

#[test]
fn a_row_that_serde_refuses_ends_its_builder() {
    /// Read as a number, written as something else once in a while.
    #[derive(Deserialize)]
    struct Liar {
        number: u64,
    }
    impl Serialize for Liar {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut fields = BTreeMap::from([("number", None)]);
            if self.number != 0 {
                fields.insert("number", Some(self.number));
            }
            fields.serialize(serializer)
        }
    }
    serde_row!(Liar);
    let mut builder = Liar::builder().expect("a builder");
    builder.append(&Liar { number: 1 }).expect("a number");
    let refused = builder.append(&Liar { number: 0 }).expect_err("no number");
    assert!(matches!(refused, RowError::Serde { .. }), "{refused}");
    assert!(
        builder.append(&Liar { number: 1 }).is_err() && builder.finish().is_err(),
        "its columns may be ragged"
    );
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
