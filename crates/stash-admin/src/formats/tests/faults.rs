//! Each fault with its exact line.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, UInt64Array},
    datatypes::{DataType, Field, Schema},
};

use super::*;

#[test]
fn a_short_or_long_csv_record_is_named_by_line_even_behind_quoted_newlines() {
    let file = csv("a,t\n\"x\ny\nz\",1\n\nonly\n");
    assert_eq!(
        file.error("t", None, None),
        "f.csv, line 6: has 1 fields, but the header has 2; add or quote what is missing or too much"
    );
    assert_eq!(
        csv("a,t\r\n1,2\r\n1,2,3\r\n").error("t", None, Some("a:int64")),
        "f.csv, line 3: has 3 fields, but the header has 2; add or quote what is missing or too much"
    );
}

#[test]
fn a_value_that_is_not_of_its_type_is_named_by_line_and_column() {
    assert_eq!(
        csv("a,b,t\n1,x,1\n\"2\",\"q\nq\",1\nzwei,x,1\n").error("t", None, Some("a:int32,b:utf8")),
        "f.csv, line 5, column \"a\": \"zwei\" is not int32; correct it, or give the column another type with --schema"
    );
    assert_eq!(
        ndjson("{\"a\":1,\"t\":1}\n\n{\"a\":1.5,\"t\":1}\n").error("t", None, Some("a:int64")),
        "f.ndjson, line 3, column \"a\": \"1.5\" is not int64; correct it, or give the column another type with --schema"
    );
    assert_eq!(
        ndjson("{\"a\":true,\"t\":1}\n").error("t", None, Some("a:int64")),
        "f.ndjson, line 1, column \"a\": \"true\" is not int64; correct it, or give the column another type with --schema"
    );
}

#[test]
fn the_first_bad_line_is_reported_whichever_column_it_is_in() {
    let error = csv("a,b,t\n1,1,1\n1,x,1\nx,1,1\n").error("t", None, Some("a:int8,b:int8"));
    assert!(error.starts_with("f.csv, line 3, column \"b\": \"x\""), "{error}");
}

#[test]
fn values_that_would_be_cut_or_rounded_are_refused() {
    for (schema, value) in [
        ("a:int8", "128"),
        ("a:uint8", "-1"),
        ("a:uint64", "18446744073709551616"),
        ("a:int64", "9007199254740993.0"),
        ("a:int64", "1e3"),
        ("a:float64", "1e400"),
        ("a:decimal(5,2)", "1.234"),
        ("a:decimal(5,2)", "1234"),
        ("a:decimal(5,2)", "1e2"),
        ("a:timestamp", "2024-01-01T00:00:00.0000001"),
        ("a:timestamp", "2024-13-01T00:00:00"),
        ("a:date", "2023-02-29"),
        ("a:bool", "1"),
        ("a:binary", "abc"),
        ("a:binary", "zz"),
    ] {
        let error = csv(format!("a,t\n{value},1\n")).error("t", None, Some(schema));
        assert!(
            error.starts_with(&format!("f.csv, line 2, column \"a\": {value:?} is not ")),
            "{schema}: {error}"
        );
    }
}

#[test]
fn a_null_in_a_column_without_nulls_says_how_to_declare_it() {
    let told = |file: &str, line| {
        format!(
            "f.{file}, line {line}, column \"a\": is null; give it a value, or declare the column nullable: a:utf8?"
        )
    };
    assert_eq!(csv("a,t\nx,1\n,2\n").error("t", None, Some("a:utf8")), told("csv", 3));
    assert_eq!(ndjson("{\"t\":1}\n").error("t", None, Some("a:utf8")), told("ndjson", 1));
}

#[test]
fn times_out_of_range_negative_fractional_or_null_are_named_by_line() {
    for (text, why) in [
        ("-1", "it is negative"),
        ("18446744073709551615", "it is too large"),
        ("99999999999999999999", "it is too large"),
        ("1.0", "it is not an integer"),
        (" 1", "it is not an integer"),
    ] {
        let expected = format!(
            "line 3, column \"t\": {text:?} cannot be a time: {why}; times are integers from 0 to 18446744073709551614"
        );
        for schema in [None, Some("a:int64")] {
            let error = csv(format!("a,t\n1,1\n1,{text}\n")).error("t", None, schema);
            assert_eq!(error, format!("f.csv, {expected}"));
        }
        if !text.starts_with(' ') {
            let error =
                ndjson(format!("{{\"a\":1,\"t\":1}}\n\n{{\"a\":1,\"t\":{text}}}\n")).error("t", None, None);
            assert_eq!(error, format!("f.ndjson, {expected}"));
        }
    }
    let null = "column \"t\": has no time; every update needs one";
    assert_eq!(csv("a,t\n1,1\n1,\n").error("t", None, None), format!("f.csv, line 3, {null}"));
    assert_eq!(
        ndjson("{\"t\":1}\n{\"t\":null}\n").error("t", None, None),
        format!("f.ndjson, line 2, {null}")
    );
    assert_eq!(ndjson("{\"t\":1}\n{\"a\":1}\n").error("t", None, None), format!("f.ndjson, line 2, {null}"));
    let declared = ndjson("{\"t\":1}\n{\"a\":1}\n").error("t", None, Some("a:int64?"));
    assert_eq!(declared, format!("f.ndjson, line 2, {null}"));
}

#[test]
fn diffs_out_of_range_or_null_are_named_by_line() {
    let too_large = csv("t,d\n1,1\n1,9223372036854775808\n").error("t", Some("d"), None);
    assert_eq!(
        too_large,
        "f.csv, line 3, column \"d\": \"9223372036854775808\" cannot be a diff: it is out of range; diffs are integers that fit 64 bits with sign"
    );
    let fraction = ndjson("{\"t\":1,\"d\":0.5}").error("t", Some("d"), None);
    assert!(
        fraction.starts_with("f.ndjson, line 1, column \"d\": \"0.5\" cannot be a diff: it is not an"),
        "{fraction}"
    );
    let null = "column \"d\": has no diff; every update needs one where a diff column is named";
    assert_eq!(csv("t,d\n1,\n").error("t", Some("d"), None), format!("f.csv, line 2, {null}"));
    let missing = ndjson("{\"t\":1,\"d\":1}\n{\"t\":1}\n");
    assert_eq!(missing.error("t", Some("d"), None), format!("f.ndjson, line 2, {null}"));
    assert_eq!(missing.error("t", Some("d"), Some("a:int8?")), format!("f.ndjson, line 2, {null}"));
}

#[test]
fn an_unknown_role_column_lists_the_columns_there_are() {
    let told = "there is no such column; pass --time-column with one of: \"a\", \"t\"";
    assert_eq!(csv("a,t\n1,1\n").error("ts", None, None), format!("f.csv, line 1, column \"ts\": {told}"));
    let lines = ndjson("{\"a\":1,\"t\":1}\n");
    assert_eq!(lines.error("ts", None, None), format!("f.ndjson, column \"ts\": {told}"));
    let declared = lines.error("ts", None, Some("a:int8,t:int8"));
    assert_eq!(declared, format!("f.ndjson, line 1, column \"ts\": {told}"));
    assert_eq!(
        csv("a,t\n1,1\n").error("t", Some("d"), None),
        "f.csv, line 1, column \"d\": there is no such column; pass --diff-column with one of: \"a\", \"t\""
    );
    assert_eq!(
        csv("a,t\n1,1\n").error("t", Some("t"), None),
        "f.csv, column \"t\": cannot be both the time and the diff column; name two columns"
    );
}

#[test]
fn a_reserved_name_says_how_to_rename_it() {
    assert_eq!(
        csv("_a,t\n1,1\n").error("t", None, None),
        "f.csv, line 1, column \"_a\": names that begin with \"_\" are reserved; rename it, to \"x_a\" perhaps"
    );
    let told = "names that begin with \"_\" are reserved; rename it, or pass --diff-column _diff";
    let lines = ndjson("{\"t\":1}\n{\"t\":1,\"_diff\":1}\n");
    assert_eq!(lines.error("t", None, None), format!("f.ndjson, line 2, column \"_diff\": {told}"));
    assert_eq!(
        lines.error("t", None, Some("a:int8?")),
        format!("f.ndjson, line 2, column \"_diff\": {told}")
    );
}

#[test]
fn what_only_looks_like_progress_is_refused_rather_than_skipped() {
    let told = "column \"_progress\": names that begin with \"_\" are reserved; fill it only in progress records, or rename it";
    for schema in [None, Some("a:int8?")] {
        let with_more = csv("a,t,_progress\n,,7\n1,1,7\n").error("t", None, schema);
        assert_eq!(with_more, format!("f.csv, line 3, {told}"));
        let no_time = csv("a,t,_progress\n,,done\n").error("t", None, schema);
        assert_eq!(no_time, format!("f.csv, line 2, {told}"));
        let told = "column \"_progress\": names that begin with \"_\" are reserved; rename it, to \"x_progress\" perhaps";
        let lines = ndjson("{\"a\":1,\"t\":1}\n{\"_progress\":\"done\"}\n").error("t", None, schema);
        assert_eq!(lines, format!("f.ndjson, line 2, {told}"));
    }
}

#[test]
fn more_columns_than_anyone_means_are_refused() {
    let wide = csv(format!("t{}\n", ",".repeat(300_000))).error("t", None, None);
    assert_eq!(
        wide,
        "f.csv, line 1: there are more than 10000 columns; if keys or fields hold values, put them into rows"
    );
    let record = csv(format!("t\n1{}\n", ",".repeat(11_000))).error("t", None, None);
    assert!(record.starts_with("f.csv, line 2: there are more than 10000 columns"), "{record}");
    let keys: String = (0..10_001).map(|key| format!("\"k{key}\":1,")).collect();
    let object = ndjson(format!("{{{keys}\"t\":1}}\n")).error("t", None, None);
    assert!(
        object.starts_with("f.ndjson, line 1: is not a JSON object (it has more than 10000 keys"),
        "{object}"
    );
    let lines: String = (0..10_001).map(|key| format!("{{\"k{key}\":1,\"t\":1}}\n")).collect();
    let many = ndjson(lines).error("t", None, None);
    assert!(
        many.starts_with("f.ndjson, line 10000, column \"k9999\": there are more than 10000 columns"),
        "{many}"
    );
}

#[test]
fn duplicate_and_missing_names_are_refused() {
    let twice = "column \"a\": the name occurs twice; rename one of the two";
    assert_eq!(csv("a,t,a\n1,1,1\n").error("t", None, None), format!("f.csv, line 1, {twice}"));
    let lines = ndjson("{\"t\":1}\n{\"a\":1,\"t\":1,\"a\":2}\n");
    assert_eq!(lines.error("t", None, None), format!("f.ndjson, line 2, {twice}"));
    assert_eq!(lines.error("t", None, Some("a:int8?")), format!("f.ndjson, line 2, {twice}"));
    let times = ndjson("{\"t\":1,\"t\":2}\n").error("t", None, Some("a:int8?"));
    assert_eq!(times, "f.ndjson, line 1, column \"t\": the name occurs twice; rename one of the two");
    assert_eq!(
        csv("a,,t\n1,1,1\n").error("t", None, None),
        "f.csv, line 1: column 2 of the header has no name; give it one"
    );
    let nameless = "column \"\": a column without a name; give it one";
    let lines = ndjson("{\"t\":1,\"\":2}\n");
    assert_eq!(lines.error("t", None, None), format!("f.ndjson, line 1, {nameless}"));
}

#[test]
fn a_schema_and_a_header_must_name_the_same_columns() {
    let file = csv("a,b,t\n1,1,1\n");
    assert_eq!(
        file.error("t", None, Some("a:int8")),
        "f.csv, line 1, column \"b\": --schema does not name this column; add it there, or take it out of the file"
    );
    assert_eq!(
        file.error("t", None, Some("a:int8,b:int8,c:int8")),
        "f.csv, line 1, column \"c\": --schema names this column, but the file has only: \"a\", \"b\", \"t\""
    );
    assert_eq!(
        file.error("t", None, Some("a:int8,b:int8,t:int8")),
        "f.csv, column \"t\": --schema names the rows' columns only; leave the time and diff columns out of it"
    );
    assert_eq!(
        ndjson("{\"t\":1}\n{\"t\":1,\"z\":1}").error("t", None, Some("a:int8?")),
        "f.ndjson, line 2, column \"z\": --schema does not name this column; add it there, or take it out of the file"
    );
}

#[test]
fn quotes_out_of_place_are_named_by_the_line_they_stand_on() {
    let error = |text: &str| csv(text).error("t", None, Some("a:utf8?"));
    assert!(error("a,t\nx,1\n5\" pipe,1\n").starts_with("f.csv, line 3: a quote within a field"));
    assert!(error("a,t\n\"x\ny\"z,1\n").starts_with("f.csv, line 3: text follows a closing quote"));
    assert_eq!(error("a,t\nx,1\n\"x\"\"\n\n,1\n"), "f.csv, line 3: a quote opened here is never closed");
}

#[test]
fn bytes_that_are_not_utf8_are_named_by_line_and_column() {
    let told = "is not UTF-8; convert the file to UTF-8 first";
    assert_eq!(
        csv(b"a,t\nx,1\n\xFF,1\n").error("t", None, None),
        format!("f.csv, line 3, column \"a\": {told}")
    );
    // Two halves of one character in neighbouring fields are not a character.
    assert_eq!(
        csv(b"t,a,b\n1,\xC3,\xA9\n").error("t", None, None),
        format!("f.csv, line 2, column \"a\": {told}")
    );
    assert_eq!(csv(b"a\xFF,t\n").error("t", None, None), format!("f.csv, line 1: {told}"));
    assert_eq!(
        ndjson(b"{\"t\":1}\n{\"t\":\xFF}\n").error("t", None, None),
        format!("f.ndjson, line 2: {told}")
    );
}

#[test]
fn a_line_that_is_not_an_object_is_shown_with_the_reason() {
    let error = |text: &str| ndjson(text).error("t", None, None);
    let told = |line: u64, why: &str| {
        format!("f.ndjson, line {line}: is not a JSON object ({why}); NDJSON has one object a line")
    };
    assert_eq!(error("{\"t\":1}\n[1]\n"), told(2, "it is a list"));
    assert_eq!(error("{\"t\":1}\n\n42\n"), told(3, "it does not begin with {"));
    assert_eq!(error("{\"t\":1\n}\n"), told(1, "EOF while parsing an object, character 6"));
    assert_eq!(error("{\"t\":1} {\"t\":2}\n"), told(1, "trailing characters, character 9"));
    assert!(error("{\"t\":1,\"a\":\"\\ud800\"}\n").starts_with("f.ndjson, line 1"));
}

#[test]
fn empty_missing_and_misplaced_files_say_what_they_are() {
    assert_eq!(
        csv("").error("t", None, None),
        "f.csv: is empty; a CSV file begins with a header that names its columns"
    );
    assert_eq!(
        csv("\n\n").error("t", None, None),
        "f.csv: is empty; a CSV file begins with a header that names its columns"
    );
    assert_eq!(
        ndjson("").error("t", None, Some("a:int8")),
        "f.ndjson: is empty; an NDJSON file has one JSON object a line"
    );
    assert_eq!(
        ndjson("\n{\"_progress\":1}\n").error("t", None, None),
        "f.ndjson: is empty; no line of it holds an update"
    );
    let mut file = csv("a,t\n");
    file.path = file.dir.path().join("none.csv");
    assert_eq!(file.error("t", None, None), "none.csv: cannot be read; check the path and its permissions");
    for format in [Format::Csv, Format::Ndjson, Format::Parquet] {
        std::fs::create_dir_all(file.dir.path().join("dir")).expect("a directory");
        (file.path, file.format) = (file.dir.path().join("dir"), format);
        assert_eq!(file.error("t", None, None), "dir: is a directory; name one file");
    }
    let missing = ChangeFile::open(
        &file.dir.path().join("none"),
        Format::Csv,
        ColumnRoles { time: "t".into(), diff: None },
        None,
    );
    let error = missing.expect_err("there is no such file");
    assert!(std::error::Error::source(&error).is_some(), "the cause is kept");
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_read_once_or_refused() {
    let mut file = csv("a,t\n");
    file.path = "/dev/null".into();
    let without = "/dev/null: is not a regular file, and finding the column types reads it twice; pass --schema, or a file";
    assert_eq!(file.error("t", None, None), without);
    let with = file.error("t", None, Some("a:int8"));
    assert_eq!(with, "/dev/null: is empty; a CSV file begins with a header that names its columns");
    file.format = Format::Parquet;
    let parquet = file.error("t", None, None);
    assert_eq!(
        parquet,
        "/dev/null: is not a regular file, and Parquet is read from its end; write it to a file first"
    );
}

#[test]
fn what_is_not_parquet_or_is_damaged_is_an_error_and_no_panic() {
    let parquet = |bytes: &[u8]| Fixture::new(Format::Parquet, bytes);
    assert_eq!(
        parquet(b"").error("t", None, None),
        "f.parquet: is empty; a Parquet file has at least a footer"
    );
    let error = parquet(b"a,t\n1,1\n2,2\n").error("t", None, None);
    assert!(error.starts_with("f.parquet: is not a Parquet file, or is damaged: "), "{error}");
    let column: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..500));
    let good = parquet_of(&RecordBatch::try_from_iter([("t", column)]).expect("a batch"));
    let bytes = std::fs::read(&good.path).expect("the file");
    for cut in (0..bytes.len()).step_by(7) {
        assert!(parquet(&bytes[..cut]).read("t", None, None).is_err(), "cut at {cut}");
    }
    for at in (0..bytes.len()).step_by(11) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x81;
        // Many such files still decode; the point is that none takes the program down.
        let _ = parquet(&bytes).read("t", None, None);
    }
}

#[test]
fn parquet_times_and_diffs_are_judged_by_row() {
    let of =
        |columns: Vec<(&str, ArrayRef)>| parquet_of(&RecordBatch::try_from_iter(columns).expect("a batch"));
    let ints = |values: Vec<Option<i64>>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let error = of(vec![("t", ints(vec![Some(1), Some(-2)]))]).error("t", None, None);
    assert!(
        error.starts_with("f.parquet, row 2, column \"t\": \"-2\" cannot be a time: it is negative"),
        "{error}"
    );
    let error = of(vec![("t", ints(vec![Some(1), None]))]).error("t", None, None);
    assert_eq!(error, "f.parquet, row 2, column \"t\": has no time; every update needs one");
    let large: ArrayRef = Arc::new(UInt64Array::from(vec![1, 2, u64::MAX]));
    let error = of(vec![("t", Arc::clone(&large))]).error("t", None, None);
    assert!(
        error.starts_with("f.parquet, row 3, column \"t\": \"18446744073709551615\" cannot be a time"),
        "{error}"
    );
    let error = of(vec![("t", ints(vec![Some(1); 3])), ("d", large)]).error("t", Some("d"), None);
    assert!(
        error.starts_with("f.parquet, row 3, column \"d\": \"18446744073709551615\" cannot be a diff"),
        "{error}"
    );
    let text: ArrayRef = Arc::new(StringArray::from(vec!["1", "x"]));
    let error = of(vec![("t", text)]).error("t", None, None);
    assert!(
        error.starts_with("f.parquet, row 2, column \"t\": \"x\" cannot be a time: it is not an"),
        "{error}"
    );
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
    let error = of(vec![("t", Arc::clone(&floats))]).error("t", None, None);
    assert_eq!(
        error,
        "f.parquet, column \"t\": is of type Float64, and cannot be the time column; name one with integers"
    );
}

#[test]
fn parquet_columns_are_judged_like_others_and_a_schema_is_refused() {
    let one = || Arc::new(Int64Array::from(vec![1])) as ArrayRef;
    let of = |names: &[&str]| {
        let fields: Vec<Field> = names.iter().map(|name| Field::new(*name, DataType::Int64, false)).collect();
        let columns = names.iter().map(|_| one()).collect();
        parquet_of(&RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("a batch"))
    };
    assert_eq!(
        of(&["a", "t"]).error("ts", None, None),
        "f.parquet, column \"ts\": there is no such column; pass --time-column with one of: \"a\", \"t\""
    );
    assert_eq!(
        of(&["_time", "_diff"]).error("_time", None, None),
        "f.parquet, column \"_diff\": names that begin with \"_\" are reserved; rename it, or pass --diff-column _diff"
    );
    assert_eq!(
        of(&["a", "t"]).error("t", None, Some("a:int64")),
        "f.parquet: a Parquet file carries its own schema; leave --schema out"
    );
    let twice = of(&["a", "t", "a"]).error("t", None, None);
    assert_eq!(twice, "f.parquet, column \"a\": the name occurs twice; rename one of the two");
}
