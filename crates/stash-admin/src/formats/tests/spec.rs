//! The argument of `--schema`.

use super::*;

#[test]
fn an_inline_schema_prints_back_as_it_was_read() {
    for text in [
        "a:int8,b:int16?,c:int32,d:int64,e:uint8,f:uint16,g:uint32,h:uint64?",
        "a:float32,b:float64?,c:bool,d:utf8?,e:binary,f:date,g:timestamp(us)?,h:decimal(38,0),i:decimal(10,2)?",
        "\"a,b\":utf8,\"say \"\"x\"\"\":utf8,\"x y\":utf8,ü:utf8",
    ] {
        assert_eq!(SchemaSpec::from_arg(text).expect(text).to_string(), text);
    }
    let spaced = SchemaSpec::from_arg(" a : int8 , b : decimal( 5 , 2 )? ").expect("spaces are fine");
    assert_eq!(spaced.to_string(), "a:int8,b:decimal(5,2)?");
}

#[test]
fn a_wrong_inline_schema_names_the_character() {
    for (text, position, problem) in [
        ("", 1, "a column name is missing"),
        ("a:int8,", 8, "a column name is missing"),
        ("a", 2, "expected \":\" and a type after \"a\""),
        ("a,b:int8", 2, "expected \":\" and a type after \"a\""),
        ("a:", 3, "a type is missing; one of bool"),
        ("ä:utf8,b:int99", 10, "\"int99\" is not a type; one of bool"),
        ("a:int8, a:int8", 9, "\"a\" occurs twice"),
        ("a:int8,_b:int8", 8, "\"_b\": names that begin with \"_\" are reserved"),
        ("a:decimal(39,0)", 3, "a decimal is decimal(p,s)"),
        ("a:decimal(5,6)", 3, "a decimal is decimal(p,s)"),
        ("a:decimal(5", 3, "\"decimal(5\" is not a type"),
        ("\"a:int8", 1, "the quote that opens here is never closed"),
    ] {
        let error = SchemaSpec::from_arg(text).expect_err(text).to_string();
        assert!(error.starts_with(&format!("--schema, character {position}: {problem}")), "{text}: {error}");
    }
}

#[test]
fn a_schema_file_says_the_same_and_its_errors_name_the_entry() {
    let dir = TempDir::new().expect("a temporary directory");
    let path = dir.path().join("schema.json");
    let read = |content: &str| {
        std::fs::write(&path, content).expect("a small file");
        let by_name = SchemaSpec::from_arg(&path.display().to_string());
        let by_mark = SchemaSpec::from_arg(&format!("@{}", path.display()));
        assert_eq!(by_name.is_ok(), by_mark.is_ok());
        by_name
            .map(|spec| spec.to_string())
            .map_err(|error| error.to_string().replace(&format!("{}/", dir.path().display()), ""))
    };
    let good = r#"[{"name":"a","type":"int8"},{"name":"b","type":"decimal(5,2)","nullable":true},{"name":"c","type":"date?"}]"#;
    assert_eq!(read(good), Ok("a:int8,b:decimal(5,2)?,c:date?".to_owned()));
    let error = read(r#"[{"name":"a","type":"int8"},{"name":"b","type":"int9"}]"#).expect_err("int9");
    assert!(
        error.starts_with("--schema: schema.json, column 2: \"int9\" is not a type; one of bool"),
        "{error}"
    );
    let error = read(r#"[{"name":"a","typ":"int8"}]"#).expect_err("typ");
    assert!(error.starts_with("--schema: schema.json is not a JSON list of"), "{error}");
    assert!(read("[]").is_err());
    let error = SchemaSpec::from_arg("@missing.json").expect_err("no such file").to_string();
    assert!(error.starts_with("--schema: missing.json cannot be read"), "{error}");
}
