//! What a user can act on: how far consumers are behind, and how long until somebody loses something.

use std::time::Duration;

use stash::{Frontier, StartAt};

use crate::scene::{Scene, measured, offer, render, spec};

#[test]
fn a_consumer_is_behind_by_batches_times_and_age_until_it_acknowledges() {
    let measured = measured(async || {
        let scene = Scene::new().await;
        let stash = scene.open().await;
        let sink =
            stash.declare_sink(spec("s").absent_hold(Duration::from_secs(100))).await.expect("declared");
        let mut subscription = sink.subscribe("slow", StartAt::Beginning).await.expect("it subscribes");
        let incarnation = render(&sink, "a").await;
        offer(&incarnation, &[1, 5, 11], 1).await;
        scene.clock.advance(7_000);
        let health = stash.health().await.expect("it is looked at");
        let [of] = &health.sinks[..] else { panic!("one sink") };
        assert_eq!((of.status, of.upper, of.batches), ("open", Frontier::at(11), 3));
        assert_eq!((of.last_accept_ms, of.incarnations_open), (Some(7_000), 1));
        let [slow] = &of.consumers[..] else { panic!("one consumer") };
        assert_eq!((slow.behind_batches, slow.behind_times, slow.behind_ms), (3, 11, 7_000));
        assert_eq!(slow.headroom_ms, Some(93_000));
        assert_eq!(of.retention_headroom_ms, None, "somebody holds the chain");

        let first = subscription.next().await.expect("it is there").expect("not the end");
        subscription.acknowledge(first.upper()).await.expect("it is acknowledged");
        let health = stash.health().await.expect("it is looked at");
        let slow = &health.sinks[0].consumers[0];
        assert_eq!((slow.behind_batches, slow.behind_times, slow.headroom_ms), (2, 10, Some(100_000)));

        while subscription.position() < Frontier::at(11) {
            let next = subscription.next().await.expect("it is there").expect("not the end");
            subscription.acknowledge(next.upper()).await.expect("it is acknowledged");
        }
        stash.drain_deletions().await.expect("it is deleted");
        scene.clock.advance(1_000);
        let health = stash.publish().await.expect("it is looked at");
        let of = &health.sinks[0];
        let slow = &of.consumers[0];
        assert_eq!((slow.behind_batches, slow.behind_times, slow.behind_ms), (0, 0, 0));
        assert_eq!(of.last_accept_ms, Some(8_000), "history tells when no batch does");
    });
    assert_eq!(measured.number("stash_consumer_behind_batches", &[("consumer", "slow"), ("sink", "s")]), 0.0);
    assert_eq!(measured.number("stash_consumer_headroom_seconds", &[("sink", "s")]), 99.0);
    assert_eq!(measured.number("stash_chain_upper", &[("sink", "s")]), 11.0);
    assert_eq!(measured.number("stash_chain_status", &[("sink", "s"), ("status", "open")]), 1.0);
}

#[test]
fn where_nobody_holds_the_chain_its_retention_is_the_headroom() {
    measured(async || {
        let scene = Scene::new().await;
        let stash = scene.open().await;
        let of_a_minute = spec("s").retention(Duration::from_secs(60)).absent_hold(Duration::from_secs(30));
        let sink = stash.declare_sink(of_a_minute).await.expect("it is declared");
        offer(&render(&sink, "a").await, &[1], 1).await;
        drop(sink.subscribe("gone", StartAt::Beginning).await.expect("it subscribes"));
        let retention =
            async || stash.health().await.expect("it is looked at").sinks[0].retention_headroom_ms;
        assert_eq!(retention().await, None, "a consumer holds it");
        scene.clock.advance(30_000);
        assert_eq!(retention().await, Some(30_000), "it was not heard for the absent hold");
        scene.clock.advance(90_000);
        assert_eq!(retention().await, Some(0));
    });
}

#[test]
fn a_complete_chain_counts_the_times_that_are_left_and_not_for_ever() {
    measured(async || {
        let scene = Scene::new().await;
        let stash = scene.open().await;
        let sink = stash.declare_sink(spec("s").up_to(5)).await.expect("it is declared");
        let mut subscription = sink.subscribe("slow", StartAt::Beginning).await.expect("it subscribes");
        offer(&render(&sink, "a").await, &[1, 5], 1).await;
        let health = stash.health().await.expect("it is looked at");
        assert_eq!((health.sinks[0].status, health.sinks[0].consumers[0].behind_times), ("complete", 2));
        while let Some(delivery) = subscription.next().await.expect("it is there") {
            subscription.acknowledge(delivery.upper()).await.expect("it is acknowledged");
        }
        assert_eq!(stash.health().await.expect("it is looked at").sinks[0].consumers[0].behind_times, 0);
    });
}

#[test]
fn keys_that_the_store_refuses_to_delete_stay_in_sight() {
    use stash_testkit::{Fault, FaultPlan, Op};
    measured(async || {
        let scene = Scene::new().await;
        let stash = scene.open().await;
        let sink = stash.declare_sink(spec("s")).await.expect("it is declared");
        let mut subscription = sink.subscribe("reader", StartAt::Beginning).await.expect("it subscribes");
        offer(&render(&sink, "a").await, &[1], 1_000).await;
        scene.store.set_plan(FaultPlan::none().always(Op::Delete, Fault::Refused { retry: true }));
        let delivery = subscription.next().await.expect("it is there").expect("not the end");
        subscription.acknowledge(delivery.upper()).await.expect("it is acknowledged");
        stash.drain_deletions().await.expect("it is deferred");
        let health = stash.health().await.expect("it is looked at");
        assert_eq!((health.queue_keys, health.sinks[0].queue_keys), (1, 1));
    });
}

#[test]
fn a_consumer_that_is_ahead_is_not_behind_with_the_one_that_stays() {
    measured(async || {
        let scene = Scene::new().await;
        let stash = scene.open().await;
        let sink = stash.declare_sink(spec("s")).await.expect("it is declared");
        let mut ahead = sink.subscribe("ahead", StartAt::Beginning).await.expect("it subscribes");
        let _stays = sink.subscribe("stays", StartAt::Beginning).await.expect("it subscribes");
        let incarnation = render(&sink, "a").await;
        offer(&incarnation, &[1], 1).await;
        let first = ahead.next().await.expect("it is there").expect("not the end");
        ahead.acknowledge(first.upper()).await.expect("it is acknowledged");
        scene.clock.advance(5_000);
        drop(incarnation);
        offer(&render(&sink, "a").await, &[1, 3], 1).await;
        scene.clock.advance(2_000);
        let health = stash.health().await.expect("it is looked at");
        let behind = |at: usize| {
            let of = &health.sinks[0].consumers[at];
            (of.consumer.as_str(), of.behind_batches, of.behind_times, of.behind_ms)
        };
        assert_eq!((behind(0), behind(1)), (("ahead", 1, 2, 2_000), ("stays", 2, 3, 7_000)));
    });
}
