//! One rendering: what goes in comes out, and a dataflow that stops does not complete the chain.

use differential_dataflow::input::Input;
use stash::Frontier;
use stash_timely::{Connected, Outcome, Place, Replica, Stop, no_errors, stash_sink};
use timely::{Config, worker::Worker};

use crate::support::{Updates, World};

/// Counts words by time on several workers; each worker feeds its part.
#[test]
fn what_is_fed_on_several_workers_is_in_the_chain_and_a_returning_closure_does_not_complete_it() {
    let workers = 3;
    let world = World::files(workers);
    let sink = world.sink::<(String, i64)>("words");
    let connection = world.connect(&sink, 3);
    let given = connection.clone();
    timely::execute(Config::process(workers), move |worker| {
        let index = worker.index();
        let (mut words, token) = worker.dataflow(|scope| {
            let (words, collection) = scope.new_collection::<(String, i64), isize>();
            let (_, errors) = scope.new_collection::<String, isize>();
            (words, stash_sink(collection, errors, &given).expect("a sink"))
        });
        for time in 0..20_u64 {
            words.advance_to(time);
            let number = i64::try_from(time).unwrap();
            words.insert((format!("word {}", time % 5), number + i64::try_from(index).unwrap()));
            if time % 3 == 0 && time > 0 {
                words
                    .remove((format!("word {}", (time - 1) % 5), number - 1 + i64::try_from(index).unwrap()));
            }
            worker.step();
        }
        token.detach();
    })
    .expect("executed");
    world.runtime.block_on(connection.idle());
    assert_eq!(connection.stop(), Some(&Stop::Ended));

    let mut expected = Updates::new();
    for time in 0..20_i64 {
        for index in 0..3 {
            let at = u64::try_from(time).unwrap();
            *expected.entry((format!("word {}|{}", time % 5, time + index), at)).or_default() += 1;
            if time % 3 == 0 && time > 0 {
                *expected
                    .entry((format!("word {}|{}", (time - 1) % 5, time - 1 + index), at))
                    .or_default() -= 1;
            }
        }
    }
    let (updates, upper) = world.read(&sink);
    expected.retain(|(_, time), diff| *diff != 0 && Frontier::at(*time) < upper);
    assert!(!upper.is_empty(), "the dataflow stopped, the chain is not complete");
    assert_eq!(updates, expected);
    world.at_rest(&sink);
}

/// A source that failed leaves its collection empty and open: the sink cannot see it, and has to be told.
#[test]
fn a_sink_that_is_told_to_renders_again_and_goes_on() {
    let world = World::files(2);
    let sink = world.declare::<(String, i64)>("words", |spec| spec.up_to(3));
    let replica = Replica::new("replica", world.stash.draw_launch(), Place::alone(2), &world.background);
    let kept = sink.clone();
    let workers = timely::execute(Config::process(2), move |worker| {
        let mut renderings = 0;
        let outcome = replica.keep(worker, &kept, |worker, connection| {
            renderings += 1;
            let (mut words, token) = worker.dataflow(|scope| {
                let (words, collection) = scope.new_collection::<(String, i64), isize>();
                stash_sink(collection, no_errors(scope), connection).map(|token| (words, token))
            })?;
            let (first, index, watch) = (renderings == 1, worker.index(), token.watch());
            let mut fed = false;
            Ok((token, move |_: &mut Worker| {
                if first && index == 1 {
                    watch.reopen("its source failed");
                } else if !fed {
                    words.insert((format!("of worker {index}"), 1));
                    words.advance_to(3);
                    words.flush();
                    fed = true;
                }
            }))
        });
        (outcome.expect("kept"), renderings)
    });
    for ended in workers.expect("executed").join() {
        assert_eq!(ended.expect("no panic"), (Outcome::Complete, 2));
    }
    let rows = ["of worker 0|1", "of worker 1|1"].map(|row| ((row.to_owned(), 0), 1));
    assert_eq!(world.read(&sink), (Updates::from(rows), Frontier::EMPTY));
    world.at_rest(&sink);
}

/// The one has completed by then, another is in the middle: what is told of the second concerns all that still write.
#[test]
fn when_one_of_several_sinks_is_told_to_render_again_those_that_still_write_do() {
    let world = World::files(2);
    let names = ["first", "second", "third"];
    let sinks = names.map(|name| world.declare::<(String, i64)>(name, |spec| spec.up_to(3)));
    let replica = Replica::new("replica", world.stash.draw_launch(), Place::alone(2), &world.background);
    let kept = sinks.clone();
    let workers = timely::execute(Config::process(2), move |worker| {
        let mut renderings = Vec::new();
        let outcomes = replica.keep_all(worker, &kept, |worker, connected| {
            let (mut tokens, mut inputs, mut connections) = (Vec::new(), Vec::new(), Vec::new());
            let first = renderings.is_empty();
            for (sink, connected) in connected.iter().enumerate() {
                let Connected::Render(connection) = connected else { continue };
                let (mut words, token) = worker.dataflow(|scope| {
                    let (words, collection) = scope.new_collection::<(String, i64), isize>();
                    stash_sink(collection, no_errors(scope), connection).map(|token| (words, token))
                })?;
                words.insert((format!("of worker {}", worker.index()), 1));
                words.advance_to(if first { [3, 1, 2][sink] } else { 3 });
                words.flush();
                inputs.push(words);
                connections.push(connection.clone());
                tokens.push(token);
            }
            renderings.push(tokens.len());
            let watch = (first && worker.index() == 1).then(|| tokens[1].watch());
            Ok((tokens, move |_: &mut Worker| {
                let _ = &inputs;
                if let Some(watch) = &watch
                    && connections[0].stop() == Some(&Stop::Complete)
                    && connections[2].upper() >= Frontier::at(2)
                {
                    watch.reopen("its source failed");
                }
            }))
        });
        (outcomes.expect("kept"), renderings)
    });
    for ended in workers.expect("executed").join() {
        let (outcomes, renderings) = ended.expect("no panic");
        assert_eq!(outcomes, [Outcome::Complete, Outcome::Complete, Outcome::Complete]);
        assert_eq!(renderings, [3, 2], "the first was complete, the third was asked to stop");
    }
    let rows = ["of worker 0|1", "of worker 1|1"].map(|row| ((row.to_owned(), 0), 1));
    for sink in &sinks {
        assert_eq!(world.read(sink), (Updates::from(rows.clone()), Frontier::EMPTY), "{}", sink.name());
        world.at_rest(sink);
    }
}
