//! Frames of the data stream (rpc/data.py).
//!
//! ```text
//! +--------+------+---------+------------+------------------+---------+
//! | length | kind | address | circuit id | address, SOCKS5  | payload |
//! | (2)    | = 1  | len (1) | (4)        | (address len)    |         |
//! +--------+------+---------+------------+------------------+---------+
//! length counts address and payload
//! ```

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const HEADER_BYTES: usize = 8;
const KIND_DATAGRAM: u8 = 1;
const MIN_ADDRESS_BYTES: usize = 4;
const BUFFER_BYTES: usize = 256 << 10;

/// One datagram of the data stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The circuit of ours that carries it.
    pub circuit_id: u32,
    /// The destination or the source, as SOCKS5 encodes it; 4 to 255 bytes.
    pub address: &'a [u8],
    /// The payload of the datagram.
    pub payload: &'a [u8],
}

/// The first frame and the bytes after it; None when more bytes are needed; Err when it is no frame.
pub fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, &[u8])>, String> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let [a, b, kind, address_bytes, id @ ..] = *header;
    let length = usize::from(u16::from_be_bytes([a, b]));
    let address_bytes = usize::from(address_bytes);
    if kind != KIND_DATAGRAM || address_bytes < MIN_ADDRESS_BYTES || address_bytes > length {
        return Err(format!("not a data frame (length {length}, kind {kind}, address of {address_bytes})"));
    }
    let Some((body, rest)) = rest.split_at_checked(length) else { return Ok(None) };
    let Some((address, payload)) = body.split_at_checked(address_bytes) else { return Ok(None) };
    let circuit_id = u32::from_be_bytes(id);
    Ok(Some((Frame { circuit_id, address, payload }, rest)))
}

/// Write a frame behind what is there. None when a length does not fit its field.
pub fn append(stream: &mut Vec<u8>, frame: &Frame<'_>) -> Option<()> {
    let address_bytes = u8::try_from(frame.address.len()).ok()?;
    let length = u16::try_from(frame.address.len() + frame.payload.len()).ok()?;
    stream.extend_from_slice(&length.to_be_bytes());
    stream.extend_from_slice(&[KIND_DATAGRAM, address_bytes]);
    stream.extend_from_slice(&frame.circuit_id.to_be_bytes());
    stream.extend_from_slice(frame.address);
    stream.extend_from_slice(frame.payload);
    Some(())
}

/// Reads the data stream and splits it into frames.
pub struct FrameReader {
    file: File,
    buffer: Box<[u8]>,
    filled: usize,
}

impl FrameReader {
    /// Creates a reader that owns this descriptor, whose reads must not block.
    pub fn new(input: OwnedFd) -> Self {
        Self { file: input.into(), buffer: vec![0; BUFFER_BYTES].into_boxed_slice(), filled: 0 }
    }

    /// Read once, as much as fits. Err when the stream is over.
    pub fn fill(&mut self) -> Result<(), String> {
        let room = self.buffer.get_mut(self.filled..).unwrap_or(&mut []);
        match self.file.read(room) {
            Ok(0) => Err("end of file".to_owned()),
            Ok(read) => {
                self.filled += read;
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(describe(&error)),
        }
    }

    /// Hand over every whole frame; Err, then and ever after, when one is broken.
    pub fn frames(&mut self, mut handle: impl FnMut(Frame<'_>)) -> Result<(), String> {
        let mut rest = self.buffer.get(..self.filled).unwrap_or(&[]);
        while let Some((frame, after)) = parse(rest)? {
            handle(frame);
            rest = after;
        }
        let (left, used) = (rest.len(), self.filled - rest.len());
        self.buffer.copy_within(used..used + left, 0);
        self.filled = left;
        Ok(())
    }
}

impl AsFd for FrameReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn describe(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHOLE: &[u8] = &[0, 9, 1, 7, 0, 0, 0, 5, 1, 1, 2, 3, 4, 0, 80, b'h', b'i', 99];

    #[test]
    fn a_frame_whole_cut_and_broken() {
        let (frame, rest) = parse(WHOLE).unwrap().unwrap();
        assert_eq!((frame.circuit_id, frame.payload, rest), (5, b"hi".as_slice(), [99].as_slice()));
        assert_eq!(frame.address, [1, 1, 2, 3, 4, 0, 80]);
        let mut written = Vec::new();
        assert_eq!(append(&mut written, &frame), Some(()));
        assert_eq!(written, WHOLE.get(..17).unwrap());
        for end in 0..WHOLE.len() - 1 {
            assert_eq!(parse(WHOLE.get(..end).unwrap()), Ok(None));
        }
        for (at, byte) in [(2, 2), (3, 3), (3, 10)] {
            let mut broken = WHOLE.to_vec();
            *broken.get_mut(at).unwrap() = byte;
            assert!(parse(&broken).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
        }
    }
}
