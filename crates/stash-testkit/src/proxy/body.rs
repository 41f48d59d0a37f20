//! Bodies on their way through a proxy: counted, and slowed or cut by plan.

use std::{io, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Body, Frame, Incoming};

use super::{Recorded, Request};

/// A body that goes on as it comes.
pub(super) type Passing = UnsyncBoxBody<Bytes, io::Error>;

/// How a body passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// As it comes.
    AsIs,
    /// By bits, with pauses between them.
    Trickle,
    /// So many bytes, then an error.
    Cut(u64),
}

/// A slow body pauses so often at most…
const PAUSES: u32 = 25;
/// …and so long each time. What makes it slow, not what a test waits for.
const PAUSE: Duration = Duration::from_millis(10);
/// The bits of a slow body.
const BIT: usize = 16 << 10;

/// A body on its way. `count` notes the bytes that passed.
pub(super) fn passing(
    body: Incoming,
    pace: Pace,
    recorded: Recorded,
    count: fn(&mut Request, u64),
) -> Passing {
    if body.is_end_stream() {
        return of(Bytes::new());
    }
    struct Way {
        body: Incoming,
        held: Bytes,
        pauses: u32,
        left: u64,
    }
    let left = match pace {
        Pace::Cut(left) => left,
        Pace::AsIs | Pace::Trickle => u64::MAX,
    };
    let pauses = if pace == Pace::Trickle { PAUSES } else { 0 };
    let way = Way { body, held: Bytes::new(), pauses, left };
    let frames = stream::unfold(way, move |mut way| {
        let recorded = recorded.clone();
        async move {
            if way.left == 0 {
                return Some((Err(io::Error::other("cut by plan")), way));
            }
            if way.held.is_empty() {
                match way.body.frame().await? {
                    Err(error) => return Some((Err(io::Error::other(error)), way)),
                    Ok(frame) => match frame.into_data() {
                        Ok(data) => way.held = data,
                        Err(trailers) => return Some((Ok(trailers), way)),
                    },
                }
            }
            let mut passes = way.held.len();
            if way.pauses > 0 {
                way.pauses -= 1;
                tokio::time::sleep(PAUSE).await;
                passes = passes.min(BIT);
            }
            passes = passes.min(usize::try_from(way.left).unwrap_or(usize::MAX));
            let data = way.held.split_to(passes);
            let bytes = passes as u64;
            way.left -= bytes;
            recorded.note(|request| count(request, bytes));
            Some((Ok(Frame::data(data)), way))
        }
    });
    // The first error is the end.
    let frames = frames.scan(false, |failed, frame| {
        let ended = std::mem::replace(failed, frame.is_err());
        std::future::ready((!ended).then_some(frame))
    });
    StreamBody::new(frames).boxed_unsync()
}

/// A body that is there already.
pub(super) fn of(bytes: Bytes) -> Passing {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}
