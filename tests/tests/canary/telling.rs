//! All that a process tells: what is logged, what errors say, panics, metrics.

use std::{
    error::Error,
    fmt,
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::{fmt::MakeWriter, util::SubscriberInitExt};

/// What was told so far.
#[derive(Clone, Default)]
struct Ears(Arc<Mutex<Vec<u8>>>);

impl Ears {
    fn hear(&self, bytes: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
    }

    fn hear_line(&self, line: &str) {
        // One line for one thing told, so that a hit is found whole.
        self.hear(line.replace('\n', "\\n").as_bytes());
        self.hear(b"\n");
    }
}

impl Write for Ears {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hear(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Ears {
    type Writer = Ears;

    fn make_writer(&'a self) -> Ears {
        self.clone()
    }
}

/// The process's logger, panic hook and metrics recorder.
pub struct Telling {
    ears: Ears,
    metrics: PrometheusHandle,
}

impl Telling {
    /// Listens from now on.
    pub fn start() -> Telling {
        let ears = Ears::default();
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
            .with_writer(ears.clone())
            .finish()
            .init();
        let metrics = PrometheusBuilder::new().install_recorder().expect("no recorder before this");
        let (heard, before) = (ears.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            heard.hear_line(&format!("panic: {panic}"));
            before(panic);
        }));
        Telling { ears, metrics }
    }

    /// Tells of an error, with its sources; the value of what went well.
    pub fn outcome<T, E: Error>(&self, what: &str, outcome: Result<T, E>) -> Option<T> {
        let error = match outcome {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        self.ears.hear_line(&format!("{what}: {error}"));
        self.ears.hear_line(&format!("{what}: {error:?}"));
        self.ears.hear_line(&format!("{what}: {error:#?}"));
        let mut source = error.source();
        while let Some(error) = source {
            self.ears.hear_line(&format!("{what}, because: {error}"));
            self.ears.hear_line(&format!("{what}, because: {error:?}"));
            source = error.source();
        }
        None
    }

    /// Tells of something that is opened or configured.
    pub fn debug(&self, what: &str, told: &impl fmt::Debug) {
        self.ears.hear_line(&format!("{what}: {told:?}"));
        self.ears.hear_line(&format!("{what}: {told:#?}"));
    }

    /// Everything that was told, the metrics included.
    pub fn end(self) -> String {
        self.ears.hear_line("metrics follow");
        self.ears.hear(self.metrics.render().as_bytes());
        let told = self.ears.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&told).into_owned()
    }
}

/// The ways in which a text may be told.
pub fn forms(text: &str) -> Vec<String> {
    let percent = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    let bytes: Vec<String> = text.bytes().map(|byte| byte.to_string()).collect();
    let mut forms = vec![
        text.to_owned(),
        text.bytes().map(percent).collect(),
        text.bytes().map(|byte| format!("{byte:02x}")).collect(),
        bytes.join(", "),
        base64(text.as_bytes()),
    ];
    forms.sort_unstable();
    forms.dedup();
    forms
}

/// Base64, without what its last digits and padding depend on.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |bits: u32| char::from(DIGITS[(bits & 63) as usize]);
    let number = |three: &[u8]| three.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
    let four = |bits: u32| [digit(bits >> 18), digit(bits >> 12), digit(bits >> 6), digit(bits)];
    bytes.chunks_exact(3).map(number).flat_map(four).collect()
}

#[test]
fn a_canary_is_found_in_each_of_its_forms() {
    let forms = forms("a/b+c=");
    for told in ["a/b+c=", "a%2Fb%2Bc%3D", "612f622b633d", "[97, 47, 98, 43, 99, 61]", "YS9iK2M9"] {
        assert!(forms.iter().any(|form| told.contains(form)), "{told}");
    }
    assert_eq!(base64(b"any carnal pleasure"), "YW55IGNhcm5hbCBwbGVhc3Vy");
}
