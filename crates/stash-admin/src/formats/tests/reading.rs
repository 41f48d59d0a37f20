//! Batches: their rows, lines, counts, bounds and progress.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, Int16Array, LargeStringArray, RecordBatch, StringArray},
    datatypes::DataType,
};

use super::*;

#[test]
fn an_update_without_diff_column_counts_once_and_roles_go_last() {
    let batches = csv("t,a\n5,x\n6,\n").read("t", None, None).expect("rows");
    let schema = batches[0].batch.schema();
    let fields: Vec<_> =
        schema.fields().iter().map(|f| (f.name().as_str(), f.data_type(), f.is_nullable())).collect();
    assert_eq!(
        fields,
        [
            ("a", &DataType::Utf8, true),
            ("_time", &DataType::UInt64, false),
            ("_diff", &DataType::Int64, false)
        ]
    );
    assert_eq!(rows(&batches), ["x|5|1", "∅|6|1"]);
}

#[test]
fn zero_diffs_are_dropped_and_counted_and_lines_stay_right() {
    let file = csv("a,t,d\nx,1,0\n\"y\n\n\",2,-1\n\nz,3,0\nw,4,+2\n");
    let batches = file.read("t", Some("d"), None).expect("rows");
    assert_eq!(rows(&batches), ["y\n\n|2|-1", "w|4|2"]);
    assert_eq!((batches[0].first_line, batches[0].dropped_zero_diffs), (2, 2));
    assert_eq!([batches[0].line_of(0), batches[0].line_of(1)], [3, 8]);
    let none = csv("t,d\n1,0\n").read("t", Some("d"), None).expect("a batch");
    assert_eq!((none[0].batch.num_rows(), none[0].dropped_zero_diffs), (0, 1));
}

#[test]
fn quoted_fields_hold_quotes_commas_and_newlines_and_tell_empty_from_null() {
    let file = csv("\u{feff}\"a\",b,t\r\n\"say \"\"hi\"\", now\",\"\",1\r\n,\"l1\r\nl2\",\"2\"");
    let batches = file.read("t", None, Some("a:utf8?,b:utf8")).expect("rows");
    assert_eq!(rows(&batches), ["say \"hi\", now||1|1", "∅|l1\r\nl2|2|1"]);
    assert_eq!(batches[0].line_of(1), 3);
    let numbers = csv("a,t\n\"\",1\n").read("t", None, Some("a:int8?")).expect("rows");
    assert_eq!(rows(&numbers), ["∅|1|1"]);
}

#[test]
fn every_declared_type_is_read_from_its_text() {
    let schema =
        "i:int8,u:uint64,f:float32,d:float64,b:bool,s:utf8,x:binary,day:date,at:timestamp,m:decimal(10,2)";
    let row =
        "-128,18446744073709551615,0.1,-0.0,TRUE,ä,00ff,2024-02-29,2024-02-29T01:02:03.000001+01:00,-12.5";
    let read =
        "-128|18446744073709551615|0.1|-0.0|true|ä|00ff|2024-02-29|2024-02-29T00:02:03.000001|-12.50|7|1";
    let file = csv(format!("i,u,f,d,b,s,x,day,at,m,t\n{row},7\n"));
    assert_eq!(rows(&file.read("t", None, Some(schema)).expect("rows")), [read]);
    let object = "{\"i\":-128,\"u\":18446744073709551615,\"f\":0.1,\"d\":-0.0,\"b\":true,\"s\":\"\\u00e4\",\"x\":\"00FF\",\
        \"day\":\"2024-02-29\",\"at\":\"2024-02-29 00:02:03.000001\",\"m\":-12.50,\"t\":\"7\"}";
    assert_eq!(rows(&ndjson(object).read("t", None, Some(schema)).expect("rows")), [read]);
}

#[test]
fn a_record_may_straddle_the_read_buffer() {
    // Longer than the buffer, and a doubled quote, a newline and a character across every offset near its end.
    for shift in 0..4 {
        let long = "é\"\n".repeat(70_000) + &"x".repeat(shift);
        let quoted = long.replace('"', "\"\"");
        let file = csv(format!("a,t\n\"{quoted}\",1\nnext,2\n"));
        let batches = file.read("t", None, Some("a:utf8")).expect("rows");
        assert_eq!(rows(&batches)[0], format!("{long}|1|1"));
        assert_eq!(batches[0].line_of(1), 70_003);
    }
}

#[test]
fn batches_are_bounded_by_rows_and_by_bytes_and_lines_go_on() {
    let mut text = "a,t\n".to_owned();
    text.extend((0..20_000).map(|n| format!("{n},{n}\n")));
    let batches = csv(&text).read("t", None, Some("a:int32")).expect("rows");
    let sizes: Vec<_> = batches.iter().map(|b| (b.first_line, b.batch.num_rows())).collect();
    assert_eq!(sizes, [(2, 8192), (8194, 8192), (16386, 3616)]);
    let wide = "y".repeat(12 << 20);
    let lines: String = (0..4).map(|n| format!("{{\"a\":\"{wide}\",\"t\":{n}}}\n")).collect();
    let batches = ndjson(lines).read("t", None, Some("a:utf8")).expect("rows");
    assert_eq!(batches.iter().map(|b| b.batch.num_rows()).collect::<Vec<_>>(), [3, 1]);
}

#[test]
fn a_record_without_end_is_refused_before_it_fills_memory() {
    let lines = format!("{{\"t\":1}}\n{{\"a\":\"{}", "y".repeat((64 << 20) + 1));
    let error = ndjson(lines).error("t", None, Some("a:utf8?"));
    assert!(error.starts_with("f.ndjson, line 2: the record is longer than 67108864 bytes"), "{error}");
}

#[test]
fn progress_rises_to_the_size_of_the_file_in_both_readings() {
    let mut text = "a,t\n".to_owned();
    text.extend((0..30_000).map(|n| format!("{n},{n}\n")));
    let file = csv(&text);
    let total = u64::try_from(text.len()).expect("small");
    let mut seen = Vec::new();
    let roles = ColumnRoles { time: "t".into(), diff: None };
    let mut changes =
        ChangeFile::open_watched(&file.path, Format::Csv, roles, None, &mut |progress| seen.push(progress))
            .expect("a file");
    assert!(seen.len() > 2 && seen.is_sorted_by_key(|progress| progress.read));
    assert_eq!(seen.last(), Some(&Progress { read: total, total: Some(total) }));
    assert!(changes.progress().read < total);
    assert!(changes.by_ref().all(|batch| batch.is_ok()));
    assert_eq!(changes.progress(), Progress { read: total, total: Some(total) });
}

#[test]
fn an_error_ends_the_reading() {
    let mut file = csv("a,t\n1,1\nx,1\n").open("t", None, Some("a:int8")).expect("a file");
    assert!(file.next().expect("an error").is_err());
    assert!(file.next().is_none());
}

#[test]
fn a_header_alone_and_a_file_of_roles_alone_are_fine() {
    assert!(csv("a,t\n").read("t", None, None).expect("no rows").is_empty());
    let batches = csv("t\n3\n").read("t", None, None).expect("rows without columns");
    assert_eq!(rows(&batches), ["3|1"]);
    assert_eq!(ndjson("{\"_progress\":1}\n").read("t", None, Some("a:int8")).expect("no rows").len(), 0);
}

#[test]
fn parquet_columns_pass_as_they_are_and_times_of_any_integer_or_text_type_are_read() {
    let a: ArrayRef = Arc::new(LargeStringArray::from(vec![Some("x"), None, Some("z")]));
    let t: ArrayRef = Arc::new(Int16Array::from(vec![1, 2, 3]));
    let d: ArrayRef = Arc::new(StringArray::from(vec!["-1", "0", "7"]));
    let batch = RecordBatch::try_from_iter_with_nullable([("t", t, false), ("a", a, true), ("d", d, false)])
        .expect("a batch");
    let file = parquet_of(&batch);
    let batches = file.read("t", Some("d"), None).expect("rows");
    assert_eq!(batches[0].batch.schema().field(0).data_type(), &DataType::LargeUtf8);
    assert_eq!(rows(&batches), ["x|1|-1", "z|3|7"]);
    assert_eq!(batches[0].place_of(1), Place::Row(3));
    let mut changes = file.open("t", Some("d"), None).expect("a file");
    assert_eq!(changes.progress().read, 0);
    assert!(changes.by_ref().all(|batch| batch.is_ok()));
    assert_eq!(Some(changes.progress().read), changes.progress().total);
}

#[test]
fn the_first_falling_time_is_named_across_batches() {
    let mut text = "a,t\n".to_owned();
    text.extend((0..9000).map(|n| format!("\"\n\",{}\n", if n == 8500 { 3 } else { 5 })));
    let batches = csv(text).read("t", None, None).expect("rows");
    let mut check = TimesCheck::default();
    assert_eq!(check.see(&batches[0]), Ok(()));
    let error = check.see(&batches[1]).expect_err("a time falls");
    assert_eq!(
        error.to_string(),
        "line 17002: time 3 comes after time 5; sort the file by time, or pass --sort"
    );
}
