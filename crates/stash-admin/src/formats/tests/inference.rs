//! Which types are found, and that none loses anything.

use super::*;

fn type_of(column: &[&str]) -> String {
    let lines: String = column.iter().map(|text| format!("{text},1\n")).collect();
    let file = csv(format!("a,t\n{lines}")).open("t", None, None).expect("a good file");
    types(&file)
}

fn json_type_of(column: &[&str]) -> String {
    let lines: String = column.iter().map(|text| format!("{{\"a\":{text},\"t\":1}}\n")).collect();
    let file = ndjson(lines).open("t", None, None).expect("a good file");
    types(&file)
}

#[test]
fn csv_types_are_the_narrowest_that_lose_nothing() {
    for (column, found) in [
        (&["1", "-2", ""][..], "a:int64?"),
        (&["1", "18446744073709551615"], "a:uint64?"),
        (&["-1", "18446744073709551615"], "a:utf8?"),
        (&["1", "18446744073709551616"], "a:utf8?"),
        (&["1", "2.5"], "a:float64?"),
        (&["9007199254740992", "2.5"], "a:float64?"),
        (&["9007199254740993", "2.5"], "a:utf8?"),
        (&["18446744073709551615", "2.5"], "a:utf8?"),
        (&["0.1234567890123456789"], "a:utf8?"),
        (&["1.5", "NaN", "-inf"], "a:float64?"),
        (&["NaN", "inf"], "a:utf8?"),
        (&["true", "false", "\"\""], "a:bool?"),
        (&["true", "1"], "a:utf8?"),
        (&["1", "x"], "a:utf8?"),
        (&["1", "007"], "a:utf8?"),
        (&["\"1\"", "\"2\""], "a:int64?"),
        (&["", ""], "a:utf8?"),
        (&["2024-01-01"], "a:utf8?"),
    ] {
        assert_eq!(type_of(column), found, "{column:?}");
    }
}

#[test]
fn json_kinds_are_believed_and_their_numbers_kept_exact() {
    for (column, found) in [
        (&["1", "null", "-2"][..], "a:int64?"),
        (&["9223372036854775808"], "a:uint64?"),
        (&["-1", "9223372036854775808"], "a:utf8?"),
        (&["123456789012345678901234567890"], "a:utf8?"),
        (&["1", "0.5"], "a:float64?"),
        (&["1", "\"NaN\""], "a:float64?"),
        (&["\"NaN\"", "\"x\""], "a:utf8?"),
        (&["\"1\""], "a:utf8?"),
        (&["true"], "a:bool?"),
        (&["null"], "a:utf8?"),
    ] {
        assert_eq!(json_type_of(column), found, "{column:?}");
    }
    let batches =
        ndjson("{\"a\":123456789012345678901234567890,\"t\":1}").read("t", None, None).expect("rows");
    assert_eq!(rows(&batches), ["123456789012345678901234567890|1|1"]);
}

#[test]
fn json_values_of_two_kinds_are_an_error_that_names_both_lines() {
    let error = |text: &str| ndjson(text).error("t", None, None);
    assert_eq!(
        error("{\"a\":1,\"t\":1}\n\n{\"a\":null,\"t\":1}\n{\"a\":\"x\",\"t\":1}\n"),
        "f.ndjson, line 4, column \"a\": holds a string here and a number in line 1; pass --schema with this column as utf8 to keep both as text"
    );
    let mixed = error("{\"a\":\"NaN\",\"t\":1}\n{\"a\":true,\"t\":1}\n");
    assert!(mixed.contains("line 2, column \"a\": holds a bool here and a string in line 1"), "{mixed}");
    assert_eq!(
        error("{\"a\":{\"b\":1},\"t\":1}\n"),
        "f.ndjson, line 1, column \"a\": holds an object; pass --schema with this column as utf8 to keep it as JSON text"
    );
    let kept = ndjson("{\"a\":{\"b\": [1]},\"t\":1}\n{\"a\":1.50,\"t\":1}\n{\"a\":\"x\",\"t\":2}\n");
    let batches = kept.read("t", None, Some("a:utf8")).expect("kept as text");
    assert_eq!(rows(&batches), ["{\"b\": [1]}|1|1", "1.50|1|1", "x|2|1"]);
}

#[test]
fn a_conflict_after_any_number_of_lines_is_still_found_before_the_first_batch() {
    let mut text = "a,t\n".to_owned();
    text.extend((0..20_000).map(|line| format!("{line},{line}\n")));
    text.push_str("last,20000\n");
    let file = csv(text).open("t", None, None).expect("a good file");
    assert_eq!(types(&file), "a:utf8?");
}

#[test]
fn json_columns_come_in_the_order_of_their_first_line_and_may_be_missing() {
    let file = ndjson("{\"t\":1,\"b\":1}\n{\"a\":2,\"b\":3,\"t\":2}\n{\"t\":3,\"a\":4}\n");
    let batches = file.read("t", None, None).expect("rows");
    assert_eq!(types(&file.open("t", None, None).expect("a file")), "b:int64?,a:int64?");
    assert_eq!(rows(&batches), ["1|∅|1|1", "3|2|2|1", "∅|4|3|1"]);
}
