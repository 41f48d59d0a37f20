//! A connection of a client, and the one to the server that goes with it.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::{
    body::{Body, Incoming},
    client::conn::http1::{SendRequest, handshake},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet};

use super::{
    Fault, Recorded, Refusal, Shared,
    body::{Pace, Passing, of, passing},
    bulk,
    call::Call,
    socket::{Reset, Socket},
};
use crate::Point;

/// Why a client's connection breaks.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("reset by plan")]
    Plan,
    #[error("the client or the server broke off")]
    Http(#[from] hyper::Error),
    #[error("the client or the server broke off")]
    Io(#[from] io::Error),
}

/// The connection to the server. Its driver ends with it.
struct Upstream {
    sender: SendRequest<Passing>,
    _driver: JoinSet<()>,
}

/// Where a client's connection keeps the server's between two requests.
type Slot = Arc<Mutex<Option<Upstream>>>;

/// Serves a client until it leaves, or its connection breaks by plan.
pub(super) async fn serve(shared: Arc<Shared>, stream: TcpStream) {
    let reset = Reset::default();
    let slot = Slot::default();
    let socket = Socket { stream, reset: reset.clone() };
    let service = service_fn(move |request| {
        let (shared, slot, reset) = (Arc::clone(&shared), Arc::clone(&slot), reset.clone());
        async move {
            let answer = answer(&shared, &slot, request).await;
            if answer.is_err() {
                reset.ask();
            }
            answer
        }
    });
    // A client that leaves, or was made to, is no error here: the record says what was.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
}

/// Answers a request; an error resets the connection.
async fn answer(
    shared: &Arc<Shared>,
    slot: &Slot,
    request: Request<Incoming>,
) -> Result<Response<Passing>, Failure> {
    let (parts, body) = request.into_parts();
    let recorded = shared.begin(&parts);
    recorded.pass_gates(Point::Before).await;
    let fault = recorded.request.fault;
    let length = body.size_hint().exact().unwrap_or(0);
    let pace = match fault {
        Some(Fault::Refused(refusal)) => {
            drain(body, &recorded).await?;
            return Ok(refused(&recorded, refusal));
        }
        Some(Fault::ResetBefore) => return Err(Failure::Plan),
        Some(Fault::PartialDelete) => {
            let body = drain(body, &recorded).await?;
            let answer = bulk::delete_some(&recorded, &body).await;
            recorded.pass_gates(Point::After).await;
            return Ok(answered(&recorded, StatusCode::OK, answer));
        }
        Some(Fault::CutRequest) if length > 0 => Pace::Cut(length / 2),
        Some(Fault::Slow) => Pace::Trickle,
        _ => Pace::AsIs,
    };
    let body = passing(body, pace, recorded.clone(), |request, bytes| request.bytes_in += bytes);
    let response = forward(shared, slot, Request::from_parts(parts, body)).await?;
    let status = response.status();
    recorded.note(|request| request.answered = Some(status.as_u16()));
    recorded.pass_gates(Point::After).await;
    match fault {
        Some(Fault::Instead(refusal)) if status.is_success() => {
            // All of the answer, since some effects come to be only with its end.
            response.into_body().collect().await?;
            Ok(refused(&recorded, refusal))
        }
        Some(Fault::ResetAfter) => {
            response.into_body().collect().await?;
            Err(Failure::Plan)
        }
        _ => Ok(relayed(response, recorded)),
    }
}

/// The server's answer, on its way to the client.
fn relayed(response: Response<Incoming>, recorded: Recorded) -> Response<Passing> {
    let (parts, body) = response.into_parts();
    let length = body.size_hint().exact().unwrap_or(0);
    let pace = match recorded.request.fault {
        Some(Fault::CutResponse) if length > 0 => Pace::Cut(length / 2),
        Some(Fault::Slow) => Pace::Trickle,
        _ => Pace::AsIs,
    };
    recorded.note(|request| {
        request.status = Some(parts.status.as_u16());
        // What was planned and did not come to pass: there was no body to cut, no success to hide.
        let cut = matches!(pace, Pace::Cut(_));
        if matches!(request.fault, Some(Fault::CutResponse | Fault::CutRequest | Fault::Instead(_))) && !cut {
            request.fault = None;
        }
    });
    let body = passing(body, pace, recorded, |request, bytes| request.bytes_out += bytes);
    Response::from_parts(parts, body)
}

/// Asks the server, over the connection that is there or a new one.
async fn forward(
    shared: &Shared,
    slot: &Slot,
    mut request: Request<Passing>,
) -> Result<Response<Incoming>, Failure> {
    let mut kept = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    loop {
        let reused = kept.is_some();
        let mut upstream = match kept.take() {
            Some(upstream) => upstream,
            None => connect(shared.port).await?,
        };
        if reused && upstream.sender.ready().await.is_err() {
            continue;
        }
        match upstream.sender.try_send_request(request).await {
            Ok(response) => {
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(upstream);
                return Ok(response);
            }
            // The server had closed a connection that it thought idle: nothing was sent.
            Err(mut error) => match error.take_message() {
                Some(unsent) if reused => request = unsent,
                _ => return Err(error.into_error().into()),
            },
        }
    }
}

async fn connect(port: u16) -> Result<Upstream, Failure> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        // Whoever asks over it hears of its errors.
        let _ = connection.await;
    });
    Ok(Upstream { sender, _driver: driver })
}

/// All of a request's body.
async fn drain(body: Incoming, recorded: &Recorded) -> Result<Bytes, Failure> {
    let body = passing(body, Pace::AsIs, recorded.clone(), |request, bytes| request.bytes_in += bytes);
    let body: Result<_, io::Error> = body.collect().await;
    Ok(body?.to_bytes())
}

fn refused(recorded: &Recorded, refusal: Refusal) -> Response<Passing> {
    let Refusal { status, code } = refusal;
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>by plan of the fault proxy</Message>\
         <RequestId>{}</RequestId></Error>",
        recorded.place
    );
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answered(recorded, status, text)
}

/// An answer of the proxy's own.
fn answered(recorded: &Recorded, status: StatusCode, text: String) -> Response<Passing> {
    let headless = matches!(recorded.request.call, Call::HeadObject | Call::HeadBucket);
    let text = if headless { Bytes::new() } else { Bytes::from(text) };
    recorded.note(|request| {
        request.status = Some(status.as_u16());
        request.bytes_out += text.len() as u64;
    });
    let mut response = Response::new(of(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/xml"));
    response
}
