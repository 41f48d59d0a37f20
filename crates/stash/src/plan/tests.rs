//! Plans as files: what was written is read, and nothing else is a plan.

use stash_types::{Description, Frontier, IncarnationId, PartName};

use super::*;

fn id(n: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(n)
}

fn header() -> PlanHeader {
    PlanHeader {
        catalog: CatalogId::from_uuid(id(1)),
        store: "/tmp/stash".to_owned(),
        scope: None,
        made: Timestamp(7),
    }
}

fn planned(n: u64, token: Option<&str>) -> Planned {
    let description = Description::new(Frontier::at(3), Frontier::EMPTY).expect("not empty");
    let name = PartName { incarnation: IncarnationId::from_uuid(id(2)), description, process: 0, n };
    let key = name.under(ShardId::from_uuid(id(3)));
    Planned { key, token: token.map(str::to_owned), reason: Unowned::IncarnationClosed, bytes: n + 10 }
}

fn written(header: &PlanHeader, all: &[Planned]) -> String {
    let mut writer = PlanWriter::new(Vec::new(), header).expect("begun");
    all.iter().for_each(|planned| writer.add(planned).expect("added"));
    String::from_utf8(writer.finish().expect("finished").0).expect("UTF-8")
}

fn read(text: &[u8]) -> Result<(PlanHeader, Vec<Planned>), PlanError> {
    let mut reader = PlanReader::new(text)?;
    let mut all = Vec::new();
    while let Some(planned) = reader.next_planned()? {
        all.push(planned);
    }
    assert!(reader.next_planned()?.is_none(), "the end stays the end");
    Ok((reader.header().clone(), all))
}

#[test]
fn what_was_planned_is_read() {
    for all in [vec![], vec![planned(0, None), planned(1, Some("t-1")), planned(2, None)]] {
        let text = written(&header(), &all);
        let (found, read) = read(text.as_bytes()).expect("a plan");
        assert_eq!((found, read), (header(), all));
    }
}

#[test]
fn a_plan_says_how_much_it_names_when_it_is_written_and_as_it_is_read() {
    let mut writer = PlanWriter::new(Vec::new(), &header()).expect("begun");
    for one in [planned(0, None), planned(1, Some("t-1")), planned(2, None)] {
        writer.add(&one).expect("added");
    }
    let tally = |entries, bytes| Tally { entries, bytes };
    let (text, totals) = writer.finish().expect("finished");
    assert_eq!((totals.garbage, totals.left_over_uploads), (tally(2, 22), tally(1, 11)));
    assert_eq!(totals.all(), tally(3, 33));
    let mut reader = PlanReader::new(text.as_slice()).expect("a plan");
    assert_eq!(reader.totals().all(), tally(0, 0));
    reader.next_planned().expect("in order");
    assert_eq!(reader.totals().all(), tally(1, 10));
}

#[test]
fn a_plan_that_was_cut_short_anywhere_is_no_plan() {
    let text = written(&header(), &[planned(0, None), planned(1, Some("t"))]);
    for cut in 0..text.len() {
        let error = read(&text.as_bytes()[..cut]);
        assert!(
            matches!(error, Err(PlanError::CutShort { .. })),
            "cut to {cut} of {} bytes: {error:?}",
            text.len()
        );
    }
    let error = read(text.lines().take(2).map(|line| format!("{line}\n")).collect::<String>().as_bytes());
    assert!(matches!(error, Err(PlanError::CutShort { line: 2 })), "{error:?}");
}

#[test]
fn a_newer_format_is_refused_whatever_else_it_holds() {
    let error = read(b"{\"plan\":{\"format\":2,\"sealed\":true}}\n{\"new\":1}\n");
    assert!(matches!(error, Err(PlanError::NewerFormat { found: 2, known: PLAN_FORMAT })), "{error:?}");
}

#[test]
fn garbage_is_named_by_its_line() {
    let text = written(&header(), &[planned(0, None)]);
    let key = planned(0, None).key.to_string();
    for (line, bad) in [
        (1, "hello\n".to_owned()),
        (1, text.replace("\"format\":1", "\"format\":0")),
        (1, text.replace("\"made_ms\"", "\"more\":1,\"made_ms\"")),
        (1, text.replace("\"catalog\":\"c", "\"catalog\":\"x")),
        (2, text.replace("\"reason\"", "\"more\":1,\"reason\"")),
        (2, text.replace("incarnation_closed", "because")),
        (2, text.replace(&key, "../../etc/passwd")),
        (2, text.replace(&key, &key.to_uppercase())),
        (2, text.replace("\"bytes\":10}", "\"bytes\":-10}")),
        (2, text.replace("{\"garbage\":{\"key\"", "{\"referenced\":{\"key\"")),
        (2, text.replace("{\"garbage\":{\"key\"", &format!("{}{{\"garbage\":{{\"key\"", " ".repeat(17_000)))),
        (3, text.replace("\"entries\":1", "\"entries\":2")),
        (4, format!("{text}{text}")),
        (4, format!("{text}\n")),
    ] {
        assert_ne!(bad, text, "line {line}");
        let error = read(bad.as_bytes());
        assert!(
            matches!(error, Err(PlanError::Garbage { line: found, .. }) if found == line),
            "{line}: {error:?}"
        );
    }
    let other = PlanHeader { scope: Some(ShardId::from_uuid(id(9))), ..header() };
    let error = read(written(&other, &[planned(0, None)]).as_bytes());
    assert!(matches!(error, Err(PlanError::Garbage { line: 2, .. })), "{error:?}");
    assert!(matches!(read(b"\xff\xfe\n"), Err(PlanError::Garbage { line: 1, .. })));
}
