//! Holds: how far everything that was made of an input is safe elsewhere.
//!
//! A hold is raised by whoever keeps what was computed: a sink's token, once what lies below is accepted. It is
//! asked by whoever would let go of the input: a source acknowledges only up to the meet of its holds, and a
//! caller compacts traces no further. Clones are the same hold.
//!
//! - A hold only rises.
//! - A new one stands at [`Frontier::MIN`] and lets go of nothing.

use std::sync::Arc;

use stash::Frontier;
use tokio::sync::watch;

/// A frontier that only rises, shared between threads: everything below it need not be kept any longer.
#[derive(Clone, Debug)]
pub struct Hold(Arc<watch::Sender<Frontier>>);

impl Hold {
    /// A hold on everything.
    pub fn new() -> Hold {
        Hold(Arc::new(watch::Sender::new(Frontier::MIN)))
    }

    /// Everything below may go.
    pub fn frontier(&self) -> Frontier {
        *self.0.borrow()
    }

    /// Lets go of everything below `frontier`, and says whether that was more than before. A lower one changes
    /// nothing.
    pub fn raise(&self, frontier: Frontier) -> bool {
        self.0.send_if_modified(|held| {
            let rises = *held < frontier;
            *held = frontier.max(*held);
            rises
        })
    }

    /// Waits until the hold stands above `frontier`, and says where. At once, if it does already.
    pub async fn above(&self, frontier: Frontier) -> Frontier {
        let mut watched = self.0.subscribe();
        let above = watched.wait_for(|held| *held > frontier).await.ok().map(|held| *held);
        match above {
            Some(above) => above,
            // The sender is `self`, which outlives this call.
            None => std::future::pending().await,
        }
    }

    /// Where the lowest of some holds stands, with that one: only when it rises the meet can. `None` without
    /// holds.
    pub fn meet(holds: &[Hold]) -> Option<(Frontier, &Hold)> {
        holds.iter().map(|hold| (hold.frontier(), hold)).min_by_key(|(frontier, _)| *frontier)
    }
}

impl Default for Hold {
    fn default() -> Hold {
        Hold::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_only_rises_and_its_clones_are_one() {
        let hold = Hold::new();
        let clone = hold.clone();
        assert_eq!(hold.frontier(), Frontier::MIN);
        assert!(clone.raise(Frontier::at(5)));
        assert!(!hold.raise(Frontier::at(3)), "a lower frontier changes nothing");
        assert!(!hold.raise(Frontier::at(5)));
        assert_eq!(hold.frontier(), Frontier::at(5));
        assert!(hold.raise(Frontier::EMPTY));
        assert_eq!(clone.frontier(), Frontier::EMPTY);
    }

    #[test]
    fn the_meet_is_the_lowest_and_there_is_none_of_nothing() {
        let holds = [Hold::new(), Hold::new()];
        holds[0].raise(Frontier::at(7));
        holds[1].raise(Frontier::at(4));
        assert_eq!(Hold::meet(&holds).map(|(meet, _)| meet), Some(Frontier::at(4)));
        assert!(Hold::meet(&[]).is_none());
    }

    #[test]
    fn a_wait_can_be_sent_between_threads() {
        fn is_send<T: Send>(_: T) {}
        is_send(Hold::new().above(Frontier::MIN));
    }

    #[tokio::test]
    async fn who_waits_is_told_of_a_rise_also_of_one_that_came_first() {
        let hold = Hold::new();
        hold.raise(Frontier::at(2));
        assert_eq!(hold.above(Frontier::MIN).await, Frontier::at(2));
        let other = hold.clone();
        let waiting = async { hold.above(Frontier::at(2)).await };
        let raising = async {
            other.raise(Frontier::at(1));
            other.raise(Frontier::at(9));
        };
        assert_eq!(tokio::join!(waiting, raising).0, Frontier::at(9));
    }
}
