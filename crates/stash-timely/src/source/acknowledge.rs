//! The task that acknowledges what the holds allow, and keeps the consumer's session.

use std::{sync::Arc, time::Duration};

use stash::{Error, ErrorKind, Frontier, Subscription};
use tokio::sync::oneshot;

use super::token::Shared;
use crate::{hold::Hold, waits::Waits};

/// How often an acknowledgement that may succeed later is tried.
const ATTEMPTS: u32 = 8;
/// The wait after the first attempt, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LAST_WAIT: Duration = Duration::from_secs(4);

/// Acknowledges for a session, as its holds rise and deliveries are given out. Ends with the chain's
/// completion; else with the token.
pub(super) async fn acknowledge(
    subscription: oneshot::Receiver<Subscription>,
    holds: Vec<Hold>,
    shared: Arc<Shared>,
) {
    // Without a consumer there is no session, and nothing to do.
    if let Ok(session) = subscription.await {
        follow(session, holds, &shared).await;
    }
    shared.acknowledges_no_more();
}

async fn follow(mut session: Subscription, holds: Vec<Hold>, shared: &Shared) {
    // What was acknowledged in an earlier session is not said again.
    let mut acknowledged = session.position();
    shared.acknowledged(acknowledged);
    let mut status = shared.watch();
    loop {
        status.mark_unchanged();
        let Some((meet, lowest)) = Hold::meet(&holds) else {
            // The session is kept for its hold on the chain.
            return std::future::pending().await;
        };
        match shared.take_upper(meet) {
            Some(upper) if upper > acknowledged => {
                if let Err(error) = say(&mut session, upper).await {
                    return shared.fail(error.into());
                }
                acknowledged = upper;
                shared.acknowledged(upper);
                if upper.is_empty() {
                    return;
                }
            }
            Some(_) => {}
            None => {
                tokio::select! {
                    _ = lowest.above(meet) => {}
                    _ = status.changed() => {}
                }
            }
        }
    }
}

async fn say(session: &mut Subscription, upper: Frontier) -> Result<(), Error> {
    let mut waits = Waits::new(FIRST_WAIT, LAST_WAIT);
    for _ in 1..ATTEMPTS {
        match session.acknowledge(upper).await {
            Err(error) if error.kind() == ErrorKind::Retry => {
                tracing::warn!(sink = %session.sink().name(), %upper, %error, "not acknowledged, tried again");
                waits.wait().await;
            }
            said => return said.map(drop),
        }
    }
    session.acknowledge(upper).await.map(drop)
}
