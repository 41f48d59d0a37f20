//! What a merge asks for, refuses, holds and passes on.

use super::*;

fn rows_at_once(rows: usize) -> OutputLimits {
    OutputLimits { rows, ..OutputLimits::default() }
}

#[test]
fn a_merge_refuses_chunks_out_of_order_and_chunks_it_did_not_ask_for() {
    let run = keyed(0..10, |_| 5, |_| "x".into());
    let mut merge = RunMerge::new(run.schema(), 2, OutputLimits::default());
    assert!(matches!(merge.step(), Ok(MergeStep::Need(0))));
    merge.push(0, run.slice(5, 2)).unwrap();
    assert!(matches!(merge.push(0, run.slice(7, 1)), Err(PartError::Misuse(_))));
    assert!(matches!(merge.push(2, run.slice(7, 1)), Err(PartError::Misuse(_))));
    merge.finish(1).unwrap();
    assert!(matches!(merge.step(), Ok(MergeStep::Need(0))));
    assert_eq!(merge.push(0, run.slice(5, 2)).unwrap_err(), PartError::OutOfOrder { run: 0 });
    assert!(merge.memory_bytes() > 0);
}

#[test]
fn a_merge_holds_a_chunk_of_each_run_and_what_its_limits_allow() {
    const RUNS: usize = 4;
    // The runs have the same keys, so that each batch has rows of all of them; their chunks end one soon after another.
    let run = |run: usize| keyed(0..200, |_| run as u64, |_| "x".repeat(1000));
    let runs: Vec<Sorted> = (0..RUNS).map(run).collect();
    let chunk_rows = 20;
    let chunk_bytes = runs[0].slice(0, chunk_rows).memory_bytes();
    let limits = OutputLimits { rows: usize::MAX, bytes: chunk_bytes, held_bytes: 2 * chunk_bytes };
    let mut merge = RunMerge::new(runs[0].schema(), RUNS, limits);
    let mut at = [0; RUNS];
    let (mut merged, mut most) = (Vec::new(), 0);
    loop {
        let step = merge.step().unwrap();
        most = most.max(merge.memory_bytes());
        match step {
            MergeStep::Need(run) if at[run] < 200 => {
                let rows = if at[run] == 0 { 5 * (run + 1) } else { chunk_rows };
                merge.push(run, runs[run].slice(at[run], rows)).unwrap();
                at[run] += rows;
            }
            MergeStep::Need(run) => merge.finish(run).unwrap(),
            MergeStep::Ready(batch) => {
                most = most.max(merge.memory_bytes() + batch.memory_bytes());
                merged.push(batch);
            }
            MergeStep::Done => break,
        }
    }
    // The comparable forms come on top, and a row that was begun.
    assert!(most <= (RUNS + 2) * chunk_bytes * 21 / 20, "{most} bytes held, a chunk has {chunk_bytes}");
    assert!(merged.len() <= 2 * RUNS * 200 / chunk_rows, "{} batches", merged.len());
    let pieces: Vec<Updates> = runs.iter().map(|run| run.updates().clone()).collect();
    assert_eq!(all_cells(&merged), oracle(&pieces));

    // Whatever is kept, a batch is given out as soon as it is so large.
    let limits = OutputLimits { bytes: chunk_bytes / 2, held_bytes: usize::MAX, ..limits };
    let chunks = runs.iter().map(|run| vec![run.clone()]).collect();
    let merged = merge_chunks(runs[0].schema(), chunks, limits).collect::<Result<Vec<_>, _>>().unwrap();
    let rows: Vec<usize> = merged.iter().map(|batch| batch.num_rows()).collect();
    assert!(rows.iter().all(|rows| *rows <= chunk_rows / 2 + 1), "{rows:?}");
}

#[test]
fn a_single_run_passes_through_without_copying() {
    let run = keyed(0..100, |_| 5, |_| "x".into());
    let merged = merge_all(run.schema(), vec![run.clone()]).unwrap();
    assert_eq!(merged.len(), 1);
    assert_eq!(merged[0].times().as_ptr(), run.times().as_ptr());
}

#[test]
fn oracle_merge_of_runs_that_take_long_turns() {
    let mut random = Random::new(31);
    let mut runs = vec![Vec::new(); 3];
    let mut key = 0;
    for _ in 0..60 {
        let (run, len) = (random.below(3), 1 + random.below(90) as u64);
        // Now and then a stretch begins with the row that another run's stretch ended with.
        key -= u64::from(key > 0 && random.below(2) == 0);
        runs[run].push(keyed(key..key + len, |_| 5, |_| "x".into()));
        key += len;
    }
    let chunked: Vec<Vec<Sorted>> = runs
        .iter()
        .map(|run| {
            let run: Vec<Updates> = run.iter().map(|piece| piece.updates().clone()).collect();
            let run = consolidate(Updates::concat(run[0].schema(), &run).unwrap()).unwrap();
            vec![run.slice(0, 500), run.slice(500, usize::MAX)]
        })
        .collect();
    let pieces: Vec<Updates> = chunked.iter().flatten().map(|chunk| chunk.updates().clone()).collect();
    let merged =
        merge_chunks(pieces[0].schema(), chunked, rows_at_once(100)).collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(all_cells(&merged), oracle(&pieces));
}
