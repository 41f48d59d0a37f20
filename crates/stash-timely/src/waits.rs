//! Waits between tries: each twice as long as the one before, up to a longest, and an end to the patience.

use std::time::{Duration, Instant};

/// How long something that may pass is tried again.
const PATIENCE: Duration = Duration::from_secs(60);

/// The waits between tries of one thing.
#[derive(Clone, Debug)]
pub(crate) struct Waits {
    next: Duration,
    longest: Duration,
    begun: Instant,
}

impl Waits {
    /// Begins with a wait of `first`; none is longer than `longest`.
    pub(crate) fn new(first: Duration, longest: Duration) -> Waits {
        Waits { next: first, longest, begun: Instant::now() }
    }

    /// Whether it is still worth another try: for a minute.
    pub(crate) fn go_on(&self) -> bool {
        self.begun.elapsed() < PATIENCE
    }

    /// How long to wait now.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = wait.saturating_mul(2).min(self.longest);
        wait
    }

    /// Waits.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let mut waits = Waits::new(Duration::from_millis(20), Duration::from_millis(100));
        let waited = [(); 5].map(|()| waits.next().as_millis());
        assert_eq!(waited, [20, 40, 80, 100, 100]);
        assert!(waits.go_on());
    }
}
