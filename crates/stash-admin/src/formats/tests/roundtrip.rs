//! What is printed can be read again.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use arrow::{
    array::{
        Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
        Float32Array, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
        TimestampMicrosecondArray, UInt64Array,
    },
    buffer::OffsetBuffer,
    datatypes::{Field, Float32Type, Float64Type, Int32Type, Schema, SchemaRef},
};
use proptest::prelude::*;

use super::*;

/// An output that is looked at later.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panicked").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn print(format: Format, batches: &[(&RecordBatch, Option<u64>)], schema: &SchemaRef) -> Vec<u8> {
    let output = Shared::default();
    let mut writer = batch_writer(format, output.clone());
    writer.begin(schema).expect("a header");
    for (batch, upper) in batches {
        writer.batch(batch).expect("rows");
        writer.progress(*upper).expect("progress");
        writer.flush().expect("a flush");
    }
    writer.finish().expect("an end");
    let bytes = output.0.lock().expect("no writer panicked");
    bytes.clone()
}

/// A batch of these row columns, with times and diffs at their extremes.
fn updates(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let rows = columns.first().map_or(0, |(_, column)| column.len());
    let times = (0..rows).map(|row| if row % 2 == 0 { u64::MAX - 1 } else { 0 });
    let diffs = (0..rows).map(|row| if row % 2 == 0 { i64::MIN } else { i64::MAX });
    let mut fields: Vec<Field> =
        columns.iter().map(|(name, column)| Field::new(*name, column.data_type().clone(), true)).collect();
    let mut columns: Vec<ArrayRef> = columns.into_iter().map(|(_, column)| column).collect();
    columns.push(Arc::new(UInt64Array::from_iter_values(times)));
    columns.push(Arc::new(Int64Array::from_iter_values(diffs)));
    fields.push(Field::new(TIME, columns[columns.len() - 2].data_type().clone(), false));
    fields.push(Field::new(DIFF, columns[columns.len() - 1].data_type().clone(), false));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("columns of one length")
}

fn spec_of(batch: &RecordBatch) -> String {
    let row: Vec<usize> = (0..batch.num_columns() - 2).collect();
    SchemaSpec::of(&batch.schema().project(&row).expect("columns"))
        .expect("types that have words")
        .to_string()
}

/// Prints in two batches and reads back, the schema declared where the format carries none.
fn there_and_back(format: Format, batch: &RecordBatch) -> RecordBatch {
    let half = batch.num_rows() / 2;
    let (first, second) = (batch.slice(0, half), batch.slice(half, batch.num_rows() - half));
    let bytes = print(format, &[(&first, Some(7)), (&second, None)], &batch.schema());
    let spec = (format != Format::Parquet).then(|| spec_of(batch));
    let file = Fixture::new(format, bytes);
    whole(&file.read(TIME, Some(DIFF), spec.as_deref()).expect("what was printed"))
}

fn every_type() -> RecordBatch {
    let decimals = Decimal128Array::from(vec![Some(-1), None, Some(12345)]);
    updates(vec![
        ("s", Arc::new(StringArray::from(vec![Some(""), None, Some("a,\"b\"\r\nü \\ \u{1F600}")]))),
        ("u", Arc::new(UInt64Array::from(vec![Some(u64::MAX), None, Some(9_007_199_254_740_993)]))),
        ("i", Arc::new(Int64Array::from(vec![Some(i64::MIN), None, Some(i64::MAX)]))),
        ("f", Arc::new(Float64Array::from(vec![Some(-0.0), Some(f64::NAN), Some(f64::NEG_INFINITY)]))),
        ("g", Arc::new(Float32Array::from(vec![Some(f32::MIN_POSITIVE), None, Some(f32::MAX)]))),
        ("b", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))),
        ("x", Arc::new(BinaryArray::from_opt_vec(vec![Some(b""), None, Some(b"\x00\xFF")]))),
        ("d", Arc::new(Date32Array::from(vec![Some(-1), None, Some(20_000)]))),
        ("at", Arc::new(TimestampMicrosecondArray::from(vec![Some(-1), None, Some(1_700_000_000_000_000)]))),
        ("m", Arc::new(decimals.with_precision_and_scale(10, 3).expect("they fit"))),
    ])
}

#[test]
fn every_type_comes_back_from_every_format_as_it_was() {
    let batch = every_type();
    for format in [Format::Csv, Format::Ndjson, Format::Parquet] {
        let back = there_and_back(format, &batch);
        assert_eq!(back.schema(), batch.schema(), "{format}");
        for (field, (left, right)) in
            batch.schema().fields().iter().zip(batch.columns().iter().zip(back.columns()))
        {
            assert_eq!(left, right, "{format}, {}", field.name());
        }
    }
}

#[test]
fn the_printed_text_is_the_documented_one() {
    let strings: ArrayRef = Arc::new(StringArray::from(vec![Some(""), None]));
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![Some(f64::NAN), Some(1e300)]));
    let batch = updates(vec![("s", strings), ("f", floats)]);
    let text = |format| {
        String::from_utf8(print(format, &[(&batch, Some(42)), (&batch.slice(0, 0), None)], &batch.schema()))
    };
    assert_eq!(
        text(Format::Ndjson).expect("text"),
        "{\"s\":\"\",\"f\":\"NaN\",\"_time\":18446744073709551614,\"_diff\":-9223372036854775808}\n\
         {\"s\":null,\"f\":1e300,\"_time\":0,\"_diff\":9223372036854775807}\n\
         {\"_progress\": 42}\n{\"_progress\": \"end\"}\n"
    );
    assert_eq!(
        text(Format::Csv).expect("text"),
        "s,f,_time,_diff,_progress\n\"\",NaN,18446744073709551614,-9223372036854775808,\n\
         ,1e300,0,9223372036854775807,\n,,,,42\n,,,,end\n"
    );
}

#[test]
fn a_name_that_begins_with_a_byte_order_mark_keeps_it() {
    let marked: ArrayRef = Arc::new(StringArray::from(vec!["\u{feff}", "\u{feff}a"]));
    let batch = updates(vec![("\u{feff}name", marked)]);
    for format in [Format::Csv, Format::Ndjson, Format::Parquet] {
        assert_eq!(there_and_back(format, &batch), batch, "{format}");
    }
}

#[test]
fn a_nan_is_one_whatever_sign_its_text_has() {
    let file = csv("f,g,t,d\nNaN,NaN,0,1\n-NaN,-nan,0,1\n");
    let read = whole(&file.read("t", Some("d"), Some("f:float64,g:float32")).expect("two updates"));
    assert_eq!(read.slice(0, 1), read.slice(1, 1));
    for format in [Format::Csv, Format::Ndjson] {
        assert_eq!(there_and_back(format, &read), read, "{format}");
    }
}

#[test]
fn moments_of_any_zone_are_printed_with_its_offset() {
    let moments = TimestampMicrosecondArray::from(vec![Some(1_700_000_000_000_001), None]);
    for (zone, shown) in [
        ("UTC", "2023-11-14T22:13:20.000001Z"),
        ("Europe/Berlin", "2023-11-14T23:13:20.000001+01:00"),
        ("+05:30", "2023-11-15T03:43:20.000001+05:30"),
    ] {
        let at: ArrayRef = Arc::new(moments.clone().with_timezone(zone));
        let offsets = OffsetBuffer::from_lengths([1, 1]);
        let item = Arc::new(Field::new_list_field(at.data_type().clone(), true));
        let list: ArrayRef = Arc::new(ListArray::new(item, offsets, Arc::clone(&at), None));
        let batch = updates(vec![("at", at), ("all", list)]);
        let first_lines = |format| {
            let text = String::from_utf8(print(format, &[(&batch, None)], &batch.schema())).expect("text");
            text.lines().take(3).map(str::to_owned).collect::<Vec<_>>()
        };
        let (time, diff) = (u64::MAX - 1, i64::MIN);
        assert_eq!(
            first_lines(Format::Ndjson)[..2],
            [
                format!(r#"{{"at":"{shown}","all":["{shown}"],"_time":{time},"_diff":{diff}}}"#),
                format!(r#"{{"at":null,"all":[null],"_time":0,"_diff":{}}}"#, i64::MAX),
            ]
        );
        assert_eq!(
            first_lines(Format::Csv)[1..],
            [format!(r#"{shown},"[""{shown}""]",{time},{diff},"#), format!(",[null],0,{},", i64::MAX),]
        );
    }
}

#[test]
fn what_has_no_text_is_an_error_that_names_its_column() {
    let beyond: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![0, i64::MAX]));
    let nowhere: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![0, 0]).with_timezone("Nowhere"));
    for at in [beyond, nowhere] {
        let item = Arc::new(Field::new_list_field(at.data_type().clone(), true));
        let list: ArrayRef =
            Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([1, 1]), Arc::clone(&at), None));
        for column in [at, list] {
            let batch = updates(vec![("at", column)]);
            for format in [Format::Ndjson, Format::Csv] {
                let output = Shared::default();
                let error = batch_writer(format, output.clone()).batch(&batch).expect_err("no such moment");
                let text = error.to_string();
                assert!(text.contains("\"at\"") && text.contains("--format parquet"), "{format}: {text}");
                let printed = output.0.lock().expect("no writer panicked").clone();
                assert_eq!(String::from_utf8_lossy(&printed).matches("1970").count(), 0, "{format}");
            }
            assert_eq!(there_and_back(Format::Parquet, &batch).column(0), batch.column(0));
        }
    }
}

#[test]
fn progress_stands_in_the_parquet_footer() {
    let batch = every_type();
    let bytes = print(Format::Parquet, &[(&batch, Some(5)), (&batch, Some(9))], &batch.schema());
    let file = Fixture::new(Format::Parquet, bytes);
    let open = std::fs::File::open(&file.path).expect("the file");
    let builder =
        ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(open).expect("Parquet");
    let pairs = builder.metadata().file_metadata().key_value_metadata().expect("pairs").clone();
    let value = pairs
        .into_iter()
        .find(|pair| pair.key == super::super::write::parquet::PROGRESS_KEY)
        .and_then(|pair| pair.value);
    assert_eq!(value.as_deref(), Some("9"));
}

#[test]
fn what_read_prints_loads_again_without_a_schema() {
    let batch = updates(vec![
        ("a", Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]))),
        ("b", Arc::new(StringArray::from(vec![Some("x"), Some(""), None]))),
    ]);
    for format in [Format::Csv, Format::Ndjson, Format::Parquet] {
        let file = Fixture::new(format, print(format, &[(&batch, Some(1)), (&batch, None)], &batch.schema()));
        let back = whole(&file.read(TIME, Some(DIFF), None).expect("what was printed"));
        let twice = arrow::compute::concat_batches(&batch.schema(), [&batch, &batch]).expect("one schema");
        assert_eq!(back, twice, "{format}");
    }
}

#[test]
fn dictionaries_and_lists_print_by_value() {
    let list = ListArray::from_iter_primitive::<Float64Type, _, _>([Some(vec![Some(1.5), None]), None]);
    let dictionary: DictionaryArray<Int32Type> = [Some("x"), None].into_iter().collect();
    let batch = updates(vec![("l", Arc::new(list)), ("k", Arc::new(dictionary))]);
    let text = |format| String::from_utf8(print(format, &[(&batch, None)], &batch.schema())).expect("text");
    assert!(text(Format::Csv).contains("\n\"[1.5,null]\",x,1844"), "{}", text(Format::Csv));
    assert!(text(Format::Csv).contains("\n,,0,"), "{}", text(Format::Csv));
    assert!(text(Format::Ndjson).contains("{\"l\":[1.5,null],\"k\":\"x\","), "{}", text(Format::Ndjson));
    assert!(text(Format::Ndjson).contains("{\"l\":null,\"k\":null,"), "{}", text(Format::Ndjson));
}

/// An output whose reader has gone after `left` bytes.
struct Broken {
    left: usize,
}

impl Write for Broken {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let taken = bytes.len().min(self.left);
        self.left -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.left == 0 { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

#[test]
fn a_broken_pipe_is_returned_as_one() {
    let batch = every_type();
    for format in [Format::Csv, Format::Ndjson, Format::Parquet] {
        for left in [0, 3, 10, 60] {
            let mut writer = batch_writer(format, Broken { left });
            let result = writer
                .begin(&batch.schema())
                .and_then(|()| writer.batch(&batch))
                .and_then(|()| writer.progress(None))
                .and_then(|()| writer.finish());
            let error = result.expect_err("the reader has gone");
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{format}, {left}: {error}");
        }
    }
}

#[test]
fn a_batch_of_other_columns_than_announced_is_refused() {
    let batch = every_type();
    let other = updates(vec![("z", Arc::new(Int64Array::from(vec![1])))]);
    for format in [Format::Csv, Format::Parquet] {
        let mut writer = batch_writer(format, io::sink());
        writer.begin(&batch.schema()).expect("a header");
        assert_eq!(writer.batch(&other).expect_err("other columns").kind(), io::ErrorKind::InvalidInput);
    }
}

fn texts() -> impl Strategy<Value = Vec<Option<String>>> {
    let marks = proptest::sample::select(vec![
        "", "\"", "\"\"", "\r\n", "\n", "\r", ",", " ", "\\", "\u{feff}", "null", "é", "end",
    ]);
    let piece = prop_oneof![marks.prop_map(str::to_owned), any::<String>()];
    let text = proptest::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat());
    proptest::collection::vec(proptest::option::of(text), 6)
}

fn at_extremes<T: std::fmt::Debug + Clone + Arbitrary + 'static>(
    extremes: Vec<T>,
) -> impl Strategy<Value = Vec<Option<T>>> {
    let value = prop_oneof![proptest::sample::select(extremes), any::<T>()];
    proptest::collection::vec(proptest::option::of(value), 6)
}

fn bits(batch: &RecordBatch, column: usize) -> Vec<Option<u64>> {
    let floats = batch.column(column).as_primitive::<Float64Type>();
    floats.iter().map(|value| value.map(f64::to_bits)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn roundtrip_random_rows_through_csv_and_ndjson(
        s in texts(),
        u in at_extremes(vec![0, u64::MAX, 1 << 53, (1 << 53) + 1]),
        i in at_extremes(vec![i64::MIN, i64::MAX, 0, -1]),
        f in at_extremes(vec![0.0, -0.0, f64::MIN_POSITIVE, f64::MAX, 5e-324, 0.1, f64::INFINITY, 1e16]),
        g in at_extremes(vec![f32::MAX, -0.0, 0.1]),
    ) {
        // Text has one NaN, so NaNs are made that one.
        let f: Vec<_> = f.into_iter().map(|v| v.map(|v| if v.is_nan() { f64::NAN } else { v })).collect();
        let g: Vec<_> = g.into_iter().map(|v| v.map(|v| if v.is_nan() { f32::NAN } else { v })).collect();
        let batch = updates(vec![
            ("s", Arc::new(StringArray::from(s))),
            ("u", Arc::new(UInt64Array::from(u))),
            ("i", Arc::new(Int64Array::from(i))),
            ("f", Arc::new(Float64Array::from(f))),
            ("g", Arc::new(Float32Array::from(g))),
        ]);
        for format in [Format::Csv, Format::Ndjson] {
            let back = there_and_back(format, &batch);
            for column in [0, 1, 2, 5, 6] {
                prop_assert_eq!(back.column(column), batch.column(column), "{}", format);
            }
            prop_assert_eq!(bits(&back, 3), bits(&batch, 3), "{}", format);
            let singles = |batch: &RecordBatch| -> Vec<Option<u32>> {
                batch.column(4).as_primitive::<Float32Type>().iter().map(|v| v.map(f32::to_bits)).collect()
            };
            prop_assert_eq!(singles(&back), singles(&batch), "{}", format);
        }
    }

    #[test]
    fn roundtrip_random_numbers_without_a_schema_lose_nothing(
        i in at_extremes(vec![i64::MIN, i64::MAX]),
        f in at_extremes(vec![1e16, -0.0, 5e-324]),
    ) {
        let f: Vec<_> = f.into_iter().map(|v| Some(v.unwrap_or(1.5))).collect();
        let f: Vec<_> = f.into_iter().map(|v| v.filter(|v: &f64| v.is_finite()).or(Some(0.5))).collect();
        let i: Vec<_> = i.into_iter().map(|v| Some(v.unwrap_or(1))).collect();
        let batch = updates(vec![("i", Arc::new(Int64Array::from(i)) as ArrayRef), ("f", Arc::new(Float64Array::from(f)))]);
        for format in [Format::Csv, Format::Ndjson] {
            let file = Fixture::new(format, print(format, &[(&batch, None)], &batch.schema()));
            let back = whole(&file.read(TIME, Some(DIFF), None).expect("what was printed"));
            prop_assert_eq!(back.column(0), batch.column(0), "{}", format);
            prop_assert_eq!(bits(&back, 1), bits(&batch, 1), "{}", format);
        }
    }

    #[test]
    fn any_bytes_are_rows_or_an_error_and_never_a_panic(bytes in proptest::collection::vec(
        prop_oneof![proptest::sample::select(b"\",\r\n{}[]:0123456789.-eat\\u_ \xC3\xA9".to_vec()), any::<u8>()], 0..80)) {
        for format in [Format::Csv, Format::Ndjson] {
            let header: &[u8] = if format == Format::Csv { b"a,t\n" } else { b"{\"a\":1,\"t\":1}\n" };
            let file = Fixture::new(format, [header, bytes.as_slice()].concat());
            let inferred = file.read("t", None, None);
            let _ = file.read("t", None, Some("a:utf8?"));
            // What the first reading accepted, the second must too.
            if let Ok(changes) = file.open("t", None, None) {
                prop_assert!(inferred.is_ok(), "{:?}", inferred.err());
                drop(changes);
            }
        }
    }
}
