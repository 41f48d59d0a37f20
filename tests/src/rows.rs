//! Rows of the tests, as updates for writing and as content for comparing.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{ArrayRef, AsArray, RecordBatch, StringArray, UInt64Array},
    datatypes::{DataType, Field, Int64Type, Schema, UInt64Type},
};
use stash::{Delivery, Error, Frontier, Sink, Subscription, TryNext};

/// A row of the tests: a key and a text.
pub type Row = (u64, String);

/// How often each row is there at each time; never zero.
pub type Content = BTreeMap<(Row, u64), i64>;

/// The schema of the tests' rows.
pub fn schema() -> Schema {
    Schema::new(vec![Field::new("key", DataType::UInt64, false), Field::new("text", DataType::Utf8, true)])
}

/// The row columns of `rows`.
pub fn columns<'a>(rows: impl Iterator<Item = &'a Row> + Clone) -> Vec<ArrayRef> {
    let keys: UInt64Array = rows.clone().map(|row| row.0).collect::<Vec<_>>().into();
    let texts: StringArray = rows.map(|row| Some(row.1.as_str())).collect();
    vec![Arc::new(keys), Arc::new(texts)]
}

/// Updates of `sink`: row, time, diff.
pub fn updates(sink: &Sink, all: &[(Row, u64, i64)]) -> RecordBatch {
    let times = all.iter().map(|update| update.1).collect();
    let diffs = all.iter().map(|update| update.2).collect();
    sink.updates(columns(all.iter().map(|update| &update.0)), times, diffs).expect("the sink's columns")
}

/// The content that updates amount to.
pub fn content_of<'a>(all: impl IntoIterator<Item = &'a (Row, u64, i64)>) -> Content {
    let mut content = Content::new();
    for (row, time, diff) in all {
        *content.entry((row.clone(), *time)).or_default() += diff;
    }
    content.retain(|_, diff| *diff != 0);
    content
}

/// The updates of a batch that was read, in its order.
pub fn rows_in(batch: &RecordBatch) -> Vec<((Row, u64), i64)> {
    let keys = batch.column(0).as_primitive::<UInt64Type>();
    let texts = batch.column(1).as_string::<i32>();
    let times = batch.column(2).as_primitive::<UInt64Type>();
    let diffs = batch.column(3).as_primitive::<Int64Type>();
    (0..batch.num_rows())
        .map(|i| (((keys.value(i), texts.value(i).to_owned()), times.value(i)), diffs.value(i)))
        .collect()
}

/// Reads a delivery and checks what every delivery promises: sorted by (row, time), each once, none zero, all
/// times within the piece.
pub async fn delivered(delivery: &Delivery) -> Result<Content, Error> {
    let mut reader = delivery.read();
    let mut content = Content::new();
    while let Some(batch) = reader.next().await? {
        for (update, diff) in rows_in(&batch) {
            assert!(delivery.piece().contains(update.1), "{update:?} lies outside {}", delivery.piece());
            assert_ne!(diff, 0, "{update:?} is not consolidated");
            if let Some((last, _)) = content.last_key_value() {
                assert!(*last < update, "{update:?} follows {last:?}: not sorted, or not consolidated");
            }
            content.insert(update, diff);
        }
    }
    assert!(!delivery.is_empty() || content.is_empty(), "a proven empty delivery holds rows");
    Ok(content)
}

/// Reads on until `upper`, checks that deliveries follow one another without a gap (I4), and gives all content.
pub async fn delivered_until(subscription: &mut Subscription, upper: Frontier) -> Result<Content, Error> {
    let mut all = Content::new();
    while subscription.position() < upper {
        let from = subscription.position();
        match subscription.try_next().await? {
            TryNext::Delivery(delivery) => {
                assert_eq!(delivery.lower(), from, "deliveries follow one another (I4)");
                all.extend(delivered(&delivery).await?);
                assert_eq!(subscription.position(), delivery.upper());
            }
            TryNext::Pending if subscription.position() > from => {}
            TryNext::Pending => panic!("the chain stands at {from}, before {upper}"),
            TryNext::End => panic!("the chain ended at {from}, before {upper}"),
        }
    }
    assert_eq!(subscription.position(), upper, "a delivery ends at {upper}");
    Ok(all)
}

/// The first updates in which two contents differ, for people; empty when they are the same.
pub fn differences(found: &Content, wanted: &Content) -> String {
    let keys: std::collections::BTreeSet<_> = found.keys().chain(wanted.keys()).collect();
    let differing: Vec<_> = keys.into_iter().filter(|key| found.get(key) != wanted.get(key)).collect();
    let shown = differing
        .iter()
        .take(5)
        .map(|key| format!("  {key:?}: found {:?}, wanted {:?}\n", found.get(key), wanted.get(key)));
    match differing.len() {
        0 => String::new(),
        count => format!("{count} updates differ:\n{}", shown.collect::<String>()),
    }
}

/// Asserts that two contents are the same, and shows only what differs.
#[macro_export]
macro_rules! assert_same {
    ($found:expr, $wanted:expr $(, $($told:tt)+)?) => {{
        let differences = $crate::differences(&$found, &$wanted);
        let told = String::new() $(+ &format!($($told)+))?;
        assert!(differences.is_empty(), "{told}: {differences}");
    }};
}
