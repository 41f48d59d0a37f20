use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{
        ArrayRef, DictionaryArray, Float64Array, Int64Array, RecordBatchOptions, StringArray, UInt64Array,
    },
    datatypes::{Field, Int32Type, Schema},
};
use proptest::prelude::*;

use super::{compare::What, *};

type Update<'a> = (Option<&'a str>, f64, u64, i64);

fn tables() -> Vec<Table> {
    let fields = vec![Field::new("word", DataType::Utf8, true), Field::new("size", DataType::Float64, true)];
    vec![Table { name: "words".to_owned(), schema: Arc::new(Schema::new(fields)) }]
}

fn batch(updates: &[Update]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter(updates.iter().map(|u| u.0))),
        Arc::new(Float64Array::from_iter_values(updates.iter().map(|u| u.1))),
        Arc::new(UInt64Array::from_iter_values(updates.iter().map(|u| u.2))),
        Arc::new(Int64Array::from_iter_values(updates.iter().map(|u| u.3))),
    ];
    RecordBatch::try_new(tables()[0].update_schema(), columns).unwrap()
}

fn tally(updates: &[Update]) -> Tally {
    let mut tally = Tally::new(&tables());
    tally.add(0, &batch(updates)).unwrap();
    tally
}

#[test]
fn order_cut_and_consolidation_do_not_matter() {
    let all = [(Some("a"), 1.0, 3, 2), (None, 1.0, 3, 1), (Some("a"), 1.0, 3, -1), (Some("b"), 1.0, 4, 1)];
    let consolidated =
        [(Some("b"), 1.0, 4, 1), (None, 1.0, 3, 1), (Some("a"), 1.0, 3, 1), (Some("c"), 0.0, 3, 0)];
    let mut cut = tally(&all[..1]);
    cut.absorb(tally(&all[1..])).unwrap();
    for other in [tally(&consolidated), cut] {
        assert_eq!(compare(&tally(&all), &other), vec![]);
    }
}

#[test]
fn a_lost_a_doubled_a_negated_and_a_late_update_are_all_found() {
    let good = [(Some("a"), 1.0, 3, 1), (Some("b"), 2.0, 4, 1), (Some("c"), 3.0, 5, 1)];
    let expected = tally(&good);
    let wrong_at = |updates: &[Update]| -> Vec<_> {
        compare(&expected, &tally(updates)).into_iter().map(|m| (m.what, m.time)).collect()
    };
    let lasting = What::Content { until: None };
    assert_eq!(wrong_at(&[good[0], good[2]]), vec![(What::Change, 4), (lasting, 4)]);
    assert_eq!(wrong_at(&[good[0], good[1], good[1], good[2]]), vec![(What::Change, 4), (lasting, 4)]);
    assert_eq!(wrong_at(&[good[0], (Some("b"), 2.0, 4, -1), good[2]]), vec![(What::Change, 4), (lasting, 4)]);
    let late = [good[0], (Some("b"), 2.0, 5, 1), good[2]];
    let healed = What::Content { until: Some(5) };
    assert_eq!(wrong_at(&late), vec![(What::Change, 4), (healed, 4), (What::Change, 5)]);
    // After it is right again, it can go wrong again.
    let again = [late[0], late[1], late[2], (Some("d"), 4.0, 6, 1)];
    assert_eq!(wrong_at(&again)[3..], [(What::Change, 6), (lasting, 6)]);
}

#[test]
fn a_mismatch_names_rows_and_both_multiplicities() {
    let found =
        compare(&tally(&[(Some("a"), 1.0, 3, 2), (None, 0.5, 3, 1)]), &tally(&[(Some("a"), 1.0, 3, 2)]));
    assert_eq!(found[0].rows_differing, Some(1));
    assert_eq!((found[0].examples[0].expected, found[0].examples[0].delivered), (1, 0));
    let text = found[0].to_string();
    for part in [
        "words, changes at time 3",
        "expected 3 rows, delivered 2",
        "expected +1, delivered +0: word=null size=0.5",
    ] {
        assert!(text.contains(part), "{text}");
    }
    // The other way round, the row is one too many.
    let found = compare(&tally(&[]), &tally(&[(Some("x"), 1.0, 3, 2)]));
    assert!(found[0].to_string().contains("expected +0, delivered +2: word=x"), "{}", found[0]);
}

#[test]
fn equal_counts_with_other_rows_are_a_mismatch_even_when_no_rows_are_kept() {
    let mut digests: Vec<Tally> = (0..3).map(|_| Tally::with_exact_rows_max(&tables(), 0)).collect();
    let updates = |word| [(Some("a"), 1.0, 3, 1), (Some(word), 1.0, 3, 1)];
    for (tally, word) in digests.iter_mut().zip(["b", "b", "c"]) {
        tally.add(0, &batch(&updates(word))).unwrap();
        assert_eq!(tally.exact_rows, 0);
    }
    assert_eq!(compare(&digests[0], &digests[1]), vec![]);
    let found = compare(&digests[0], &digests[2]);
    assert_eq!((found[0].rows_differing, found[0].examples.len()), (None, 0));
    assert!(found[0].to_string().contains("the rows differ"));
}

#[test]
fn the_fullest_time_is_thinned_and_still_names_rows_that_are_wrong() {
    let big: Vec<_> = (0..5000).map(|i| (Some("a"), f64::from(i), 1, 1)).collect();
    let few = [(Some("b"), 0.0, 2, 1), (Some("b"), 0.0, 2, -1), (Some("c"), 0.0, 2, 1)];
    let thinned = |big: &[Update], rows_max| {
        let mut tally = Tally::with_exact_rows_max(&tables(), rows_max);
        tally.add(0, &batch(&few)).unwrap();
        big.chunks(700).for_each(|chunk| tally.add(0, &batch(chunk)).unwrap());
        tally
    };
    let kept = |tally: &Tally| -> Vec<_> {
        let moments: Vec<_> = tally.tables[0].moments.values().collect();
        assert_eq!(tally.exact_rows, moments.iter().map(|moment| moment.exact.len()).sum::<usize>());
        moments.iter().map(|moment| (moment.exact.len(), moment.zeros > 0)).collect()
    };
    let expected = thinned(&big, 400);
    assert!(matches!(kept(&expected)[..], [(100..400, true), (1, false)]), "{:?}", kept(&expected));
    // The more thinned side decides what both know; only rows that are wrong are named.
    let delivered = thinned(&big[..2500], 900);
    assert!(kept(&delivered)[0].0 > kept(&expected)[0].0);
    assert_eq!(compare(&expected, &thinned(&big, 900)), vec![]);
    let found = compare(&expected, &delivered);
    assert_eq!((found[0].what, found[0].rows_differing, found[0].examples.len()), (What::Change, None, 3));
    assert!(found[0].examples.iter().all(|example| (example.expected, example.delivered) == (1, 0)));
    // What one of two has thinned is not half known in their sum.
    let mut sum = thinned(&[(Some("d"), 0.0, 1, 1)], 9999);
    sum.absorb(expected).unwrap();
    assert!(matches!(kept(&sum)[..], [(100..=401, true), (1, false)]), "{:?}", kept(&sum));
}

#[test]
fn minus_zero_nulls_and_empty_strings_are_rows_of_their_own() {
    let variants =
        [(Some(""), 0.0, 1, 1), (Some(""), -0.0, 1, 1), (None, 0.0, 1, 1), (Some("\0"), 0.0, 1, 1)];
    for (i, one) in variants.iter().enumerate() {
        for (j, other) in variants.iter().enumerate() {
            assert_eq!(compare(&tally(&[*one]), &tally(&[*other])).is_empty(), i == j, "{one:?} {other:?}");
        }
    }
}

#[test]
fn dictionaries_count_by_value() {
    let schema = |data_type| {
        vec![Table {
            name: "d".to_owned(),
            schema: Arc::new(Schema::new(vec![Field::new("w", data_type, true)])),
        }]
    };
    let tables = schema(DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)));
    let tally = |words: [&str; 2]| {
        let column: DictionaryArray<Int32Type> = words.into_iter().collect();
        let rest = |values| Arc::new(UInt64Array::from(values)) as ArrayRef;
        let diffs = Arc::new(Int64Array::from(vec![1, 1]));
        let batch =
            RecordBatch::try_new(tables[0].update_schema(), vec![Arc::new(column), rest(vec![1, 1]), diffs]);
        let mut tally = Tally::new(&tables);
        tally.add(0, &batch.unwrap()).unwrap();
        tally
    };
    assert_eq!(compare(&tally(["a", "b"]), &tally(["b", "a"])), vec![]);
    assert_eq!(compare(&tally(["a", "b"]), &tally(["b", "b"])).len(), 2);
}

#[test]
fn rows_without_columns_count_by_their_multiplicity() {
    let tables = vec![Table { name: "unit".to_owned(), schema: Arc::new(Schema::empty()) }];
    let tally = |rows: usize| {
        let columns: Vec<ArrayRef> =
            vec![Arc::new(UInt64Array::from(vec![1; rows])), Arc::new(Int64Array::from(vec![1; rows]))];
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(tables[0].update_schema(), columns, &options).unwrap();
        let mut tally = Tally::new(&tables);
        tally.add(0, &batch).unwrap();
        tally
    };
    assert_eq!(compare(&tally(3), &tally(3)), vec![]);
    let found = compare(&tally(3), &tally(2));
    assert_eq!((found[0].expected.rows, found[0].delivered.rows, found[0].rows_differing), (3, 2, Some(1)));
}

#[test]
fn a_batch_with_other_columns_is_refused_with_both_lists() {
    let mut tally = Tally::new(&tables());
    let error = tally.add(0, &batch(&[]).project(&[1, 0, 2, 3]).unwrap()).unwrap_err().to_string();
    assert!(
        error.contains("(size Float64, word Utf8), and should have (word Utf8, size Float64)"),
        "{error}"
    );
    let error = tally.add(0, &batch(&[]).project(&[0, 1]).unwrap()).unwrap_err().to_string();
    assert!(error.contains("_time and _diff"), "{error}");
    assert!(matches!(tally.add(1, &batch(&[])), Err(TallyError::NoTable { table: 1, tables: 1 })));
}

#[test]
fn tallies_of_other_tables_are_neither_added_up_nor_equal() {
    let other = vec![Table { name: "other".to_owned(), ..tables().remove(0) }];
    assert!(matches!(Tally::new(&tables()).absorb(Tally::new(&other)), Err(TallyError::Tables { .. })));
    assert_eq!(compare(&Tally::new(&tables()), &Tally::new(&other)).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn oracle_tallies_are_equal_exactly_when_the_consolidated_updates_are(
        ours in prop::collection::vec((0..3usize, 0..3u64, -2..3i64), 0..12),
        theirs in prop::collection::vec((0..3usize, 0..3u64, -2..3i64), 0..12),
        rows_max in 0..4usize,
    ) {
        let words = ["a", "b", "c"];
        let build = |updates: &[(usize, u64, i64)]| {
            let mut model: BTreeMap<(u64, usize), i64> = BTreeMap::new();
            let mut tally = Tally::with_exact_rows_max(&tables(), rows_max);
            for (word, time, diff) in updates {
                *model.entry((*time, *word)).or_default() += diff;
                tally.add(0, &batch(&[(Some(words[*word]), 0.0, *time, *diff)])).unwrap();
            }
            model.retain(|_, diff| *diff != 0);
            (model, tally)
        };
        let ((ours, our_tally), (theirs, their_tally)) = (build(&ours), build(&theirs));
        prop_assert_eq!(ours == theirs, compare(&our_tally, &their_tally).is_empty());
        for time in 0..4 {
            let rows: i64 = ours.range(..=(time, 9)).map(|(_, diff)| diff).sum();
            prop_assert_eq!(our_tally.content_at(0, time).rows, i128::from(rows));
        }
        prop_assert!(our_tally.exact_rows <= rows_max);
    }
}
