//! An object that is too large for one PUT: sent in equal pieces, published at the end.
//!
//! - All pieces but the last have the same length, as some stores demand. They are slices of the chunks given: nothing is
//!   copied.
//! - An upload that is not published is abandoned: after a failure, after a cancelled call, and after a dropped one. So the
//!   work is done by a task of its own, which learns that nobody waits any more; a call that is dropped while the store
//!   is beginning the upload would not know what to abandon.
//! - Abandoning may fail too. What is left then is listed, and swept.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream};
use object_store::{
    Error, PutPayload,
    aws::AmazonS3,
    multipart::{MultipartStore, PartId},
    path::Path,
};
use tokio::sync::oneshot;

/// The least that a piece may have, but the last: what S3 says.
const PIECE_BYTES_MIN: u64 = 5 << 20;

/// What a piece has, where the object is not too large for that.
const PIECE_BYTES: u64 = 64 << 20;

/// How many pieces an upload may have: what S3 says.
const PIECES_MAX: u64 = 10_000;

/// How many pieces are under way at once.
const AT_ONCE: usize = 4;

/// An object to be uploaded in pieces.
pub(crate) struct Upload {
    pub(crate) store: Arc<AmazonS3>,
    pub(crate) path: Path,
    pub(crate) pieces: Vec<PutPayload>,
}

/// How long a piece of an object of `len` bytes is.
pub(crate) fn piece_bytes(len: u64, put_bytes_max: u64) -> u64 {
    let usual = PIECE_BYTES.min(put_bytes_max).max(PIECE_BYTES_MIN);
    usual.max(len.div_ceil(PIECES_MAX))
}

/// Cuts what `chunks` hold into pieces of `piece_bytes`, the last of which may be shorter.
pub(crate) fn cut(chunks: Vec<Bytes>, piece_bytes: u64) -> Vec<PutPayload> {
    let whole = usize::try_from(piece_bytes).unwrap_or(usize::MAX).max(1);
    let (mut pieces, mut piece, mut room) = (Vec::new(), Vec::new(), whole);
    for mut chunk in chunks {
        while !chunk.is_empty() {
            let some = chunk.split_to(chunk.len().min(room));
            room -= some.len();
            piece.push(some);
            if room == 0 {
                pieces.push(PutPayload::from_iter(std::mem::take(&mut piece)));
                room = whole;
            }
        }
    }
    if !piece.is_empty() {
        pieces.push(PutPayload::from_iter(piece));
    }
    pieces
}

impl Upload {
    /// Does it, unless nobody waits for `done` any more; then, and after a failure, abandons it.
    pub(crate) async fn run(self, mut done: oneshot::Sender<Result<(), Error>>) {
        let id = match self.store.create_multipart(&self.path).await {
            Ok(id) => id,
            Err(error) => return drop(done.send(Err(error))),
        };
        let outcome = tokio::select! {
            biased;
            () = done.closed() => None,
            outcome = self.send(&id) => Some(outcome),
        };
        if let Some(Ok(())) = outcome {
            return drop(done.send(Ok(())));
        }
        match self.store.abort_multipart(&self.path, &id).await {
            Ok(()) | Err(Error::NotFound { .. }) => {}
            Err(error) => {
                tracing::warn!(key = %self.path, %error, "an upload could not be abandoned; the sweep will find it");
            }
        }
        if let Some(outcome) = outcome {
            drop(done.send(outcome));
        }
    }

    async fn send(&self, id: &str) -> Result<(), Error> {
        let id = id.to_owned();
        let sending: Vec<BoxFuture<'static, Result<PartId, Error>>> = self
            .pieces
            .iter()
            .enumerate()
            .map(|(index, piece)| {
                let (store, path) = (Arc::clone(&self.store), self.path.clone());
                let (id, piece) = (id.clone(), piece.clone());
                async move { store.put_part(&path, &id, index, piece).await }.boxed()
            })
            .collect();
        let sent: Vec<PartId> = stream::iter(sending).buffered(AT_ONCE).try_collect().await?;
        self.store.complete_multipart(&self.path, &id, sent).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pieces_are_equal_and_within_what_stores_take() {
        assert_eq!(piece_bytes(300 << 20, 256 << 20), 64 << 20);
        assert_eq!(piece_bytes(12 << 20, 5 << 20), 5 << 20);
        for len in [1_u64 << 40, 5 << 40] {
            let piece = piece_bytes(len, 5 << 30);
            assert!(len.div_ceil(piece) <= PIECES_MAX, "{len}");
        }
    }

    proptest! {
        #[test]
        fn roundtrip_pieces_hold_the_chunks_in_order(lens in proptest::collection::vec(0_usize..50, 0..20), piece in 1_u64..40) {
            let mut next = 0_u8;
            let chunks: Vec<Bytes> = lens.iter().map(|&len| {
                Bytes::from((0..len).map(|_| { next = next.wrapping_add(1); next }).collect::<Vec<u8>>())
            }).collect();
            let whole: Vec<u8> = chunks.concat();
            let pieces = cut(chunks, piece);
            for (index, one) in pieces.iter().enumerate() {
                let len = one.content_length() as u64;
                prop_assert!(len == piece || (index + 1 == pieces.len() && len > 0 && len < piece));
            }
            let joined: Vec<u8> = pieces.into_iter().flat_map(|piece| Bytes::from(piece).to_vec()).collect();
            prop_assert_eq!(joined, whole);
        }
    }
}
