//! Inputs as they are written and read: numbers little endian, stretches of bytes behind their lengths.
//!
//! Reading never fails, since a fuzzer must be free to cut: what is missing is zero, or empty.

use stash_types::Digest;

/// An input, being read.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Reads `bytes` from the start.
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.take(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// A stretch behind its length of two bytes.
    pub fn stretch(&mut self) -> &'a [u8] {
        let len = usize::from(self.u16());
        self.take(len)
    }

    /// The next `len` bytes, or what there is.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// An input, being written: for seeds.
#[derive(Clone, Debug, Default)]
pub struct Output(Vec<u8>);

impl Output {
    /// An input that begins with these bytes.
    pub fn of(bytes: &[u8]) -> Output {
        Output(bytes.to_vec())
    }

    /// Adds bytes.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Output {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Adds a stretch behind its length.
    #[must_use]
    pub fn stretch(self, bytes: &[u8]) -> Output {
        let len = u16::try_from(bytes.len()).expect("a seed's stretch is short");
        self.bytes(&len.to_le_bytes()).bytes(bytes)
    }

    /// The whole input.
    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

/// A wire frame round `body`, with the seal that belongs to it.
pub fn sealed(magic: u8, version: u8, body: &[u8]) -> Vec<u8> {
    let digest = Digest::of(body);
    [&[magic, version], &digest.0[..8], body].concat()
}

/// A random source that replays from its seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The source with this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound`, 0 if there is none.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() >> 11) as usize % bound.max(1)
    }
}
