//! Which order is inserted, changed and deleted at which tick: closed forms, so that any tick is found
//! without replaying the ones before it.
//!
//! A *base* order is named by its position in a seeded permutation of the snapshot's orders, a *new* order by
//! how many were inserted before it. Two functions say the same thing from both sides:
//! [`Schedule::life`] gives an order's whole life, [`Schedule::touched`] the orders of a tick. The life
//! decides; `touched` may name an order of which the life says that nothing happens.
//!
//! With N base orders, R orders per refresh set, a set at every n-th tick, and k orders per trickle tick:
//!
//! - *Inserts.* k new orders at a trickle tick, R at a refresh.
//! - *Deletes of base orders* run through the positions from the front and stop at N/2: k − 1 at a
//!   trickle tick; R at a refresh, less the new orders which that refresh deletes.
//! - *Changes of base orders before they go.* In the ticks before a refresh, k a tick of those which it
//!   will delete are completed first, so that what is retracted is not what the snapshot held.
//! - *Changes of base orders that stay* run through the positions from the back down to N/2, k a tick:
//!   shipped in part, and three ticks later completed.
//! - *New orders* of a tick: the first is shipped in part after one tick, completed after two, deleted after four;
//!   the second is completed after two. Of a refresh set beyond its first k, every fourth is deleted by the next
//!   refresh, and every fourth is completed by it.

use std::collections::BTreeSet;

/// An order, base or new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    /// In the snapshot, by its position in the seeded permutation.
    Base(u64),
    /// Inserted by a tick, by the number of those inserted before it.
    New(u64),
}

/// How much of an order is shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// As the generator made it.
    Placed,
    /// The first half of the lines that were open.
    Partial,
    /// All lines.
    Complete,
}

/// The ticks at which something happens to an order.
///
/// - What would happen at or after `died` does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    born: u64,
    partial: Option<u64>,
    complete: Option<u64>,
    died: Option<u64>,
}

impl Life {
    /// The order as of `time`, or `None` where it does not exist.
    pub fn at(&self, time: u64) -> Option<Stage> {
        let passed = |tick: Option<u64>| tick.is_some_and(|tick| tick <= time);
        if time < self.born || passed(self.died) {
            None
        } else if passed(self.complete) {
            Some(Stage::Complete)
        } else if passed(self.partial) {
            Some(Stage::Partial)
        } else {
            Some(Stage::Placed)
        }
    }

    /// The order just before `time`.
    pub fn before(&self, time: u64) -> Option<Stage> {
        time.checked_sub(1).and_then(|time| self.at(time))
    }
}

/// New orders of one tick which change a fixed number of ticks later: (their place in the tick, the lags).
const LAGS: [(u64, &[u64]); 2] = [(0, &[1, 2, 4]), (1, &[2])];

/// The lag from the partial to the complete shipment of a base order that stays.
const COMPLETE_LAG: u64 = 3;

/// The schedule; see the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// N.
    pub base: u64,
    /// R, at least 1.
    pub refresh: u64,
    /// n, at least 1.
    pub every: u64,
    /// k, at least 1.
    pub trickle: u64,
}

impl Schedule {
    fn is_refresh(&self, tick: u64) -> bool {
        tick > 0 && tick.is_multiple_of(self.every)
    }

    /// How many orders are inserted up to and with `tick`.
    pub fn inserted(&self, tick: u64) -> u64 {
        let refreshes = tick / self.every;
        (tick - refreshes) * self.trickle + refreshes * self.refresh
    }

    /// How many base orders are deleted up to and with `tick`.
    fn deleted(&self, tick: u64) -> u64 {
        let refreshes = tick / self.every;
        let returned = refreshes.saturating_sub(1) * self.returned();
        let all = (tick - refreshes) * (self.trickle - 1) + refreshes * self.refresh - returned;
        all.min(self.base / 2)
    }

    /// How many orders of a refresh set the next refresh deletes.
    fn returned(&self) -> u64 {
        let below = |bound: u64| bound.div_ceil(4);
        below(self.refresh).saturating_sub(below(self.trickle.max(2)))
    }

    /// The refresh that comes after `tick`.
    fn refresh_after(&self, tick: u64) -> u64 {
        (tick / self.every + 1) * self.every
    }

    /// The first tick at which `count`, which never falls, exceeds `target`; at most `bound`.
    fn first_beyond(target: u64, bound: u64, count: impl Fn(u64) -> u64) -> u64 {
        let (mut low, mut high) = (1, bound);
        while low < high {
            let middle = low + (high - low) / 2;
            if count(middle) > target { high = middle } else { low = middle + 1 }
        }
        low
    }

    /// The whole life of `order`.
    pub fn life(&self, order: Order) -> Life {
        match order {
            Order::Base(position) if position < self.base / 2 => self.life_of_leaving(position),
            Order::Base(position) => {
                let partial = 1 + (self.base - 1 - position) / self.trickle;
                let complete = Some(partial + COMPLETE_LAG);
                Life { born: 0, partial: Some(partial), complete, died: None }
            }
            Order::New(number) => self.life_of_new(number),
        }
    }

    fn life_of_leaving(&self, position: u64) -> Life {
        // Every refresh deletes at least one, so this bound lies beyond.
        let bound = self.every * (position + 2);
        let died = Self::first_beyond(position, bound, |tick| self.deleted(tick));
        let mut complete = None;
        if self.is_refresh(died) {
            let place = position - self.deleted(died - 1);
            complete = Some(died - self.every + 1 + place / self.trickle).filter(|tick| *tick < died);
        }
        Life { born: 0, partial: None, complete, died: Some(died) }
    }

    fn life_of_new(&self, number: u64) -> Life {
        // Every tick inserts at least one.
        let born = Self::first_beyond(number, number + 1, |tick| self.inserted(tick));
        let place = number - self.inserted(born - 1);
        let after = |lag| Some(born + lag);
        let placed = Life { born, partial: None, complete: None, died: None };
        match place {
            0 => Life { partial: after(1), complete: after(2), died: after(4), ..placed },
            1 => Life { complete: after(2), ..placed },
            _ if !self.is_refresh(born) || place < self.trickle => placed,
            _ => match place % 4 {
                0 => Life { died: after(self.every), ..placed },
                1 => Life { complete: after(self.every), ..placed },
                _ => placed,
            },
        }
    }

    /// The orders to which something may happen at `tick`, which is at least 1.
    pub fn touched(&self, tick: u64) -> BTreeSet<Order> {
        let born = (self.inserted(tick - 1)..self.inserted(tick)).map(Order::New);
        let gone = (self.deleted(tick - 1)..self.deleted(tick)).map(Order::Base);
        let mut touched: BTreeSet<Order> = born.chain(gone).collect();
        self.touch_leaving(tick, &mut touched);
        self.touch_staying(tick, &mut touched);
        self.touch_new(tick, &mut touched);
        touched
    }

    fn touch_leaving(&self, tick: u64, touched: &mut BTreeSet<Order>) {
        let refresh = self.refresh_after(tick);
        // A refresh belongs to the ticks before it: the next one's changes begin after it.
        if self.is_refresh(tick) {
            return;
        }
        let places = (tick + self.every - refresh - 1) * self.trickle;
        let first = self.deleted(refresh - 1) + places;
        touched.extend((first..(first + self.trickle).min(self.deleted(refresh))).map(Order::Base));
    }

    fn touch_staying(&self, tick: u64, touched: &mut BTreeSet<Order>) {
        let staying = self.base - self.base / 2;
        for since in
            [Some(tick), tick.checked_sub(COMPLETE_LAG)].into_iter().flatten().filter(|tick| *tick > 0)
        {
            let first = (since - 1) * self.trickle;
            let places = first..(first + self.trickle).min(staying);
            touched.extend(places.map(|place| Order::Base(self.base - 1 - place)));
        }
    }

    fn touch_new(&self, tick: u64, touched: &mut BTreeSet<Order>) {
        for (place, lags) in LAGS {
            let born = lags.iter().filter_map(|lag| tick.checked_sub(*lag)).filter(|born| *born > 0);
            let numbers = born.filter_map(|born| {
                let number = self.inserted(born - 1) + place;
                (number < self.inserted(born)).then_some(number)
            });
            touched.extend(numbers.map(Order::New));
        }
        if self.is_refresh(tick) && tick > self.every {
            let first = self.inserted(tick - self.every - 1);
            let places = (self.trickle.max(2)..self.refresh).filter(|place| place % 4 < 2);
            touched.extend(places.map(|place| Order::New(first + place)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedules() -> impl Iterator<Item = Schedule> {
        let all = [
            (40, 1, 1, 1),
            (41, 1, 3, 2),
            (300, 12, 5, 2),
            (301, 30, 4, 3),
            (2000, 9, 25, 1),
            (64, 40, 2, 5),
        ];
        all.into_iter().map(|(base, refresh, every, trickle)| Schedule { base, refresh, every, trickle })
    }

    #[test]
    fn a_tick_names_exactly_the_orders_whose_lives_change_at_it() {
        for schedule in schedules() {
            let ticks = 120;
            let base = (0..schedule.base).map(Order::Base);
            let new = (0..schedule.inserted(ticks)).map(Order::New);
            let lives: Vec<_> = base.chain(new).map(|order| (order, schedule.life(order))).collect();
            for tick in 1..=ticks {
                let touched = schedule.touched(tick);
                for (order, life) in &lives {
                    let changes = life.before(tick) != life.at(tick);
                    assert!(!changes || touched.contains(order), "{schedule:?} {tick} {order:?} {life:?}");
                }
                for order in &touched {
                    // What is touched is known: a base order there is, or a new one that is born by now.
                    assert!(lives.binary_search_by_key(order, |(order, _)| *order).is_ok(), "{order:?}");
                }
            }
        }
    }

    #[test]
    fn a_refresh_deletes_as_many_orders_as_it_inserts_and_the_trickle_stays_small() {
        let schedule = Schedule { base: 150_000, refresh: 150, every: 25, trickle: 2 };
        for tick in 2..500 {
            let lives: Vec<_> =
                schedule.touched(tick).into_iter().map(|order| schedule.life(order)).collect();
            let count = |pick: fn(&Life, u64) -> bool| lives.iter().filter(|life| pick(life, tick)).count();
            let inserted = count(|life, tick| life.born == tick);
            let deleted = count(|life, tick| life.died == Some(tick) && life.before(tick).is_some());
            if schedule.is_refresh(tick) {
                assert_eq!(inserted, 150);
                assert!(deleted.abs_diff(inserted) <= 1, "{tick}: {deleted} deleted");
            } else {
                assert_eq!(inserted, 2);
                assert!(
                    (1..=2).contains(&deleted) && lives.len() <= 14,
                    "{tick}: {deleted}, {}",
                    lives.len()
                );
            }
        }
    }

    #[test]
    fn orders_are_deleted_as_placed_and_as_changed_whether_base_or_new() {
        let schedule = Schedule { base: 1500, refresh: 20, every: 5, trickle: 2 };
        let mut seen = BTreeSet::new();
        for tick in 1..100 {
            for order in schedule.touched(tick) {
                let life = schedule.life(order);
                if let (Some(stage), None) = (life.before(tick), life.at(tick)) {
                    seen.insert((matches!(order, Order::Base(_)), stage));
                }
            }
        }
        for wanted in [true, false].into_iter().flat_map(|b| [(b, Stage::Placed), (b, Stage::Complete)]) {
            assert!(seen.contains(&wanted), "{wanted:?} is never deleted");
        }
    }
}
