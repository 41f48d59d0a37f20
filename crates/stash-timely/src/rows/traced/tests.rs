use serde::{Deserialize, Serialize, Serializer};

use super::*;
use crate::Row;

/// A text, written as nothing where it is empty: that does not fit its column.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Text(String);

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_empty() { serializer.serialize_none() } else { serializer.serialize_str(&self.0) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    text: Text,
}
serde_row!(Note);

fn note(bytes: usize) -> Note {
    Note { text: Text("x".repeat(bytes)) }
}

/// What a trial's columns take: they are asked for, and with that emptied.
fn tried(trial: &mut Trial) -> usize {
    let columns = trial.builder.to_arrow().expect("columns");
    columns.iter().map(|column| column.get_buffer_memory_size()).sum()
}

/// Named for what was found: as many rows as were to be tried were kept, however long each of them was.
#[test]
fn rows_that_are_tried_take_a_bounded_number_of_bytes_and_none_once_the_columns_are_finished() {
    let long = TRIED_BYTES_MAX / 16;
    let mut builder = Note::builder().expect("a builder");
    builder.append(&note(0)).expect_err("it does not fit");
    for _ in 0..TRIED_MAX - 1 {
        builder.append(&note(long)).expect("it fits");
    }
    let took = tried(builder.trial.as_mut().expect("rows are tried"));
    // A buffer grows by doubling.
    assert!(took <= 2 * TRIED_BYTES_MAX, "{took} bytes");
    let columns = builder.finish().expect("it finishes");
    assert_eq!(columns[0].len(), TRIED_MAX - 1, "all are there");
    assert!(builder.trial.is_none(), "nothing is tried");
}
