//! Errors of the dataflow: consumers get everything before, then the error; what is taken back at its time is none.

use differential_dataflow::input::Input;
use serde::ser::SerializeStruct;
use stash::{DataflowError, Frontier};
use stash_timely::{
    Connected, Connection, Outcome, Replica, SinkConfig, SinkError, SinkStatus, Stop, batch::arrange_vals,
    no_errors, stash_arranged, stash_sink,
};
use timely::Config;

use crate::{
    story::{Feed, Story, Words, play},
    support::World,
};

#[test]
fn an_error_in_the_middle_poisons_the_chain_from_its_time_on() {
    let feed = Feed::seeded(21, 60, 5);
    for (stride, world) in [(1, World::files(3)), (60, World::files(3)), (4, World::parts(3))] {
        let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
        let errors = vec![("later", 31, 1), ("it broke", 30, 1), ("another", 30, 2)];
        let story = Story { errors, stride, ..Story::of(&feed) };
        let (outcome, _) = play(&world, &sink, "replica", 3, &story);
        // Of several at the earliest time one is told.
        let Outcome::Poisoned(DataflowError { at: 30, message }) = &outcome else { panic!("{outcome:?}") };
        assert!(["it broke", "another"].contains(&message.as_str()), "{message}");
        for _ in 0..2 {
            let (updates, upper, error) = world.read_to_error(&sink);
            assert_eq!(upper, Frontier::at(30));
            assert_eq!(updates, feed.oracle(0, Frontier::at(30)), "everything up to there");
            let told = error.expect("then the error, again and again");
            assert!(told.contains(message.as_str()), "{told}");
        }
        assert_eq!(play(&world, &sink, "replica", 3, &Story::of(&feed)), (outcome, 0), "for good");
        world.at_rest(&sink);
        world.leaves_nothing(&sink);
    }
}

/// Named for what was found: the rendering went on as if nothing were wrong, or ended as complete.
#[test]
fn a_replica_is_told_that_its_chain_is_poisoned_although_its_inputs_stay_open() {
    let feed = Feed::seeded(24, 60, 5);
    let world = World::files(2);
    let sink = world.declare::<Words>("words", |spec| spec);
    let story = Story { errors: vec![("it broke", 30, 1)], closes: false, ..Story::of(&feed) };
    let poisoned = Outcome::Poisoned(DataflowError { at: 30, message: "it broke".to_owned() });
    assert_eq!(play(&world, &sink, "replica", 2, &story), (poisoned, 1));
    world.at_rest(&sink);
    world.leaves_nothing(&sink);
}

#[test]
fn an_error_that_is_taken_back_at_its_time_counts_for_nothing_whichever_worker_says_so() {
    let feed = Feed::seeded(22, 40, 5);
    let world = World::files(3);
    let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
    let errors = vec![("oops", 9, 2), ("oops", 9, -1), ("oops", 9, -1), ("no", 0, 1), ("no", 0, -1)];
    let story = Story { errors, ..Story::of(&feed) };
    assert_eq!(play(&world, &sink, "replica", 3, &story).0, Outcome::Complete);
    assert_eq!(world.read(&sink).0, feed.oracle(0, Frontier::EMPTY));
    world.at_rest(&sink);
}

/// Named for what was found: more errors than are kept ended the replica for good, although nothing was left of them.
#[test]
fn however_many_errors_come_and_go_at_one_time_they_count_for_nothing() {
    let feed = Feed::seeded(27, 20, 5);
    let world = World::files(2);
    let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
    let messages = (0..2_001).map(|number| &*format!("oops {number}").leak()).collect::<Vec<&'static str>>();
    // By an odd number: what one worker says the other takes back.
    let errors = messages.iter().map(|message| (*message, 9, 1));
    let errors = errors.chain(messages.iter().map(|message| (*message, 9, -1))).collect::<Vec<_>>();
    let story = Story { errors, ..Story::of(&feed) };
    assert_eq!(play(&world, &sink, "replica", 2, &story), (Outcome::Complete, 1));
    assert_eq!(world.read(&sink).0, feed.oracle(0, Frontier::EMPTY));
    world.at_rest(&sink);
}

#[test]
fn an_error_that_is_taken_back_later_was_one() {
    let feed = Feed::seeded(23, 40, 5);
    let world = World::files(2);
    let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
    // In one description, so that both are there when it is written.
    let errors = vec![("oops", 9, 1), ("oops", 12, -1)];
    let story = Story { errors, stride: 40, ..Story::of(&feed) };
    let (outcome, _) = play(&world, &sink, "replica", 2, &story);
    assert!(matches!(&outcome, Outcome::Poisoned(error) if error.at == 9), "{outcome:?}");
    assert_eq!(world.read_to_error(&sink).1, Frontier::at(9));
    world.at_rest(&sink);
}

/// Renders a connection on two workers until it stops, or takes it down once the chain has reached `upper`; says why it
/// stopped.
fn render(connection: &Connection, story: &Story, upper: Frontier) -> Stop {
    let (given, story) = (connection.clone(), story.clone());
    let workers = timely::execute(Config::process(2), move |worker| {
        let (token, mut drive) = story.render(worker, &given).expect("rendered");
        while token.status() == SinkStatus::Running {
            drive(worker);
            worker.step_or_park(Some(std::time::Duration::from_millis(1)));
            if token.upper() >= upper {
                token.stop();
            }
        }
        token.detach();
        worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
    });
    workers.expect("workers").join().into_iter().for_each(|ended| ended.expect("no panic"));
    connection.stop().expect("stopped").clone()
}

#[test]
fn of_two_replicas_one_reports_an_error_and_the_other_is_told_of_it() {
    let feed = Feed::seeded(25, 60, 5);
    let world = World::files(2);
    let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
    // It was granted its snapshot before the other one wrote anything, and knows of no error.
    let well = world.connect(&sink, 2);
    let story = Story::of(&feed);
    let ill = Story { errors: vec![("it broke", 30, 1)], ..story.clone() };
    let error = DataflowError { at: 30, message: "it broke".to_owned() };
    assert_eq!(play(&world, &sink, "ill", 2, &ill), (Outcome::Poisoned(error.clone()), 1));
    let DataflowError { at, message } = error.clone();
    assert_eq!(render(&well, &story, Frontier::EMPTY), Stop::Poisoned { at, message });
    world.runtime.block_on(well.idle());
    drop(well);
    assert_eq!(play(&world, &sink, "replica", 2, &story), (Outcome::Poisoned(error), 0), "for good");
    let (updates, upper, _) = world.read_to_error(&sink);
    assert_eq!((updates, upper), (feed.oracle(0, Frontier::at(30)), Frontier::at(30)));
    world.at_rest(&sink);
    world.leaves_nothing(&sink);
}

#[test]
fn an_error_of_one_replica_that_another_has_passed_is_its_own_failure_and_the_chain_goes_on() {
    let feed = Feed::seeded(26, 60, 5);
    let world = World::files(2);
    let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
    let ill = world.connect(&sink, 2);
    let story = Story::of(&feed);
    let well = stash::Launch::single("well", 2).expect("a launch");
    let well = Connection::open(&sink, well, &world.background, SinkConfig::default());
    let Connected::Render(well) = world.runtime.block_on(well).expect("opened") else { panic!("complete") };
    let part = Story::of(&Feed { end: 45, ..feed.clone() });
    assert_eq!(render(&well, &part, Frontier::at(45)), Stop::GoingAway);
    world.runtime.block_on(well.idle());
    let upper = world.runtime.block_on(sink.upper()).expect("an upper");
    assert!(upper > Frontier::at(30), "it has passed the error: {upper}");
    // One description has all of it: minted before the other one's upper is known.
    let errors = vec![("it broke", 30, 1)];
    let stop = render(&ill, &Story { errors: errors.clone(), stride: 60, ..story.clone() }, Frontier::EMPTY);
    assert!(matches!(stop, Stop::Reopen(_)), "{stop:?}");
    world.runtime.block_on(ill.idle());
    drop(ill);
    // Rendered again it begins above, where it knows of no error.
    let outcome = play(&world, &sink, "replica", 2, &Story { errors, ..story }).0;
    assert_eq!(outcome, Outcome::Complete);
    assert_eq!(world.read(&sink), (feed.oracle(0, Frontier::EMPTY), Frontier::EMPTY));
    world.at_rest(&sink);
    world.leaves_nothing(&sink);
}

/// Arranges words by their text and puts them into a sink of texts and numbers, halved: odd ones cannot be.
fn halves(world: &World, rows: Vec<(Words, u64, isize)>) -> (stash::Sink, Outcome) {
    let halve = |word: &String, number: &i64| match number % 2 {
        0 => Ok((word.clone(), number / 2)),
        _ => Err(format!("{word} {number} cannot be halved")),
    };
    let (sink, outcome) = projected(world, rows, halve);
    (sink, outcome.expect("an outcome"))
}

/// Arranges words by their text and puts what becomes of them into a sink.
fn projected(
    world: &World,
    rows: Vec<(Words, u64, isize)>,
    project: fn(&String, &i64) -> Result<Words, String>,
) -> (stash::Sink, Result<Outcome, std::sync::Arc<SinkError>>) {
    let sink = world.declare::<Words>("projected", |spec| spec.up_to(100));
    let (place, kept) = (stash_timely::Place::alone(2), sink.clone());
    let replica = Replica::new("replica", world.stash.draw_launch(), place, &world.background);
    let workers = timely::execute(Config::process(2), move |worker| {
        replica.keep(worker, &kept, |worker, connection| {
            let first = worker.index() == 0;
            let (mut input, mut errors, token) = worker.dataflow(|scope| {
                let (input, words) = scope.new_collection::<Words, isize>();
                let (errors_in, faults) = scope.new_collection::<String, isize>();
                let arranged = arrange_vals(words);
                let token = stash_arranged::<_, Words, _, _, _>(arranged, faults, project, connection)?;
                Ok::<_, SinkError>((input, errors_in, token))
            })?;
            for (row, time, diff) in rows.iter().filter(|_| first) {
                input.update_at(row.clone(), *time, *diff);
            }
            Ok((token, move |_: &mut _| {
                input.advance_to(100);
                input.flush();
                errors.advance_to(100);
                errors.flush();
            }))
        })
    });
    let outcomes = workers.expect("workers").join();
    let outcome = outcomes.into_iter().map(|ended| ended.expect("no panic")).next();
    (sink, outcome.expect("a worker"))
}

fn update(word: &str, number: i64, time: u64, diff: isize) -> (Words, u64, isize) {
    ((word.to_owned(), number), time, diff)
}

#[test]
fn a_projection_that_fails_is_an_error_at_the_time_of_the_update() {
    let rows = vec![update("a", 4, 0, 1), update("b", 6, 5, 2), update("a", 7, 8, 1), update("c", 2, 9, 1)];
    let world = World::files(2);
    let (sink, outcome) = halves(&world, rows);
    let Outcome::Poisoned(error) = outcome else { panic!("{outcome:?}") };
    assert_eq!((error.at, error.message.as_str()), (8, "a 7 cannot be halved"));
    let (updates, upper, _) = world.read_to_error(&sink);
    assert_eq!(upper, Frontier::at(8));
    assert_eq!(updates, [(("a|2".to_owned(), 0), 1), (("b|3".to_owned(), 5), 2)].into());
    world.at_rest(&sink);
}

#[test]
fn a_projection_that_fails_for_what_is_taken_back_at_its_time_does_not_matter() {
    let rows = vec![update("a", 4, 0, 1), update("a", 7, 8, 1), update("a", 7, 8, -1), update("a", 4, 9, -1)];
    let world = World::files(2);
    let (sink, outcome) = halves(&world, rows);
    assert_eq!(outcome, Outcome::Complete);
    let (updates, _) = world.read(&sink);
    assert_eq!(updates, [(("a|2".to_owned(), 0), 1), (("a|2".to_owned(), 9), -1)].into());
    world.at_rest(&sink);
}

/// Named for what was found: what no rendering mends was rendered ten times, and passed for a want of progress.
#[test]
fn rows_that_sum_beyond_what_a_stash_can_hold_end_the_replica_by_name() {
    let world = World::files(2);
    let rows = vec![update("a", 1, 0, 1), update("b", 1, 5, isize::MAX), update("b", 2, 5, isize::MAX)];
    let (sink, ended) = projected(&world, rows, |word, _| Ok((word.clone(), 0)));
    let error = ended.expect_err("too many");
    let SinkError::Failed { sink: of, reason } = &*error else { panic!("{error}") };
    assert_eq!(of, "projected");
    assert!(reason.starts_with("its updates of [") && reason.contains("i64"), "{reason}");
    world.at_rest(&sink);
}

/// A row that serde writes without its number where that is odd: it does not fit its own columns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
struct Even {
    word: String,
    number: u64,
}

impl serde::Serialize for Even {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_struct("Even", 2)?;
        row.serialize_field("word", &self.word)?;
        if self.number.is_multiple_of(2) {
            row.serialize_field("number", &self.number)?;
        }
        row.end()
    }
}
stash_timely::serde_row!(Even);

/// Puts rows into a sink: which worker, word, number, time and diff.
fn evens(world: &World, rows: &[(usize, &str, u64, u64, isize)]) -> (stash::Sink, Outcome) {
    let rows = rows.iter().map(|(worker, word, number, time, diff)| {
        (*worker, Even { word: (*word).to_owned(), number: *number }, *time, *diff)
    });
    let rows = rows.collect::<Vec<_>>();
    let sink = world.declare::<Even>("evens", |spec| spec.up_to(100));
    let (place, kept) = (stash_timely::Place::alone(2), sink.clone());
    let replica = Replica::new("replica", world.stash.draw_launch(), place, &world.background);
    let workers = timely::execute(Config::process(2), move |worker| {
        replica.keep(worker, &kept, |worker, connection| {
            let index = worker.index();
            let (mut input, token) = worker.dataflow(|scope| {
                let (input, evens) = scope.new_collection::<Even, isize>();
                stash_sink(evens, no_errors(scope), connection).map(|token| (input, token))
            })?;
            for (_, row, time, diff) in rows.iter().filter(|row| row.0 == index) {
                input.update_at(row.clone(), *time, *diff);
            }
            Ok((token, move |_: &mut _| {
                input.advance_to(100);
                input.flush();
            }))
        })
    });
    let outcomes = workers.expect("workers").join();
    let outcome = outcomes.into_iter().map(|ended| ended.expect("no panic").expect("an outcome")).next();
    (sink, outcome.expect("a worker"))
}

/// Named for what was found: the rows that were scanned after it were refused too, and poisoned the chain at their times;
/// and what was scanned before it was lost.
#[test]
fn a_row_that_does_not_fit_its_columns_is_an_error_at_its_own_time_and_no_other_row_is() {
    let world = World::files(2);
    // The snapshot is written apart; of the others one is scanned before the row that does not fit, two behind it.
    let rows =
        [(0, "a", 2, 0, 1), (0, "aa", 8, 4, 1), (0, "b", 3, 8, 1), (0, "c", 4, 5, 2), (0, "d", 6, 9, 1)];
    let (sink, outcome) = evens(&world, &rows);
    let Outcome::Poisoned(error) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.at, 8, "{error:?}");
    assert!(error.message.contains("Even { word: \"b\", number: 3 }"), "{error:?}");
    let (updates, upper, _) = world.read_to_error(&sink);
    assert_eq!(upper, Frontier::at(8));
    let row = |row: &str, time, diff| ((row.to_owned(), time), diff);
    assert_eq!(updates, [row("a|2", 0, 1), row("aa|8", 4, 1), row("c|4", 5, 2)].into());
    world.at_rest(&sink);
}

/// Named for what was found: two rows that did not fit were one error, which was taken back where one came and the other
/// went. The chain lacked both, and was complete.
#[test]
fn a_row_that_does_not_fit_and_replaces_another_does_not_pass_for_an_error_that_was_taken_back() {
    for other in 0..2 {
        let world = World::files(2);
        let (sink, outcome) = evens(&world, &[(0, "a", 3, 8, 1), (other, "b", 5, 8, -1)]);
        assert!(matches!(&outcome, Outcome::Poisoned(error) if error.at == 8), "{outcome:?}");
        assert_eq!(world.read_to_error(&sink).1, Frontier::at(8));
        world.at_rest(&sink);
    }
}

/// Named for what was found: each worker poisoned the chain for what it saw, although together there was nothing of it.
#[test]
fn a_row_that_does_not_fit_and_goes_on_another_worker_when_it_comes_is_no_error() {
    let world = World::files(2);
    let rows = [(0, "a", 2, 3, 1), (0, "b", 3, 8, 1), (1, "b", 3, 8, -1), (1, "c", 4, 9, 1)];
    let (sink, outcome) = evens(&world, &rows);
    assert_eq!(outcome, Outcome::Complete);
    let (updates, _) = world.read(&sink);
    assert_eq!(updates, [(("a|2".to_owned(), 3), 1), (("c|4".to_owned(), 9), 1)].into());
    world.at_rest(&sink);
    // Two come and one goes: one is left.
    let world = World::files(2);
    let (sink, outcome) = evens(&world, &[(0, "b", 3, 8, 2), (1, "b", 3, 8, -1)]);
    assert!(matches!(&outcome, Outcome::Poisoned(error) if error.at == 8), "{outcome:?}");
    world.at_rest(&sink);
}
