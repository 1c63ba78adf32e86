//! Why there is no connection for a stream: what is counted of it, and what the other end or a SOCKS5 client is told. Pure.

use std::io::{self, ErrorKind};

use crate::counters::{Counters, DropReason};
use crate::streams::opening::Reply;

/// Why a stream that was asked for leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// No circuit of the client's lane carries streams, and none may come to.
    NoCircuit,
    /// The stream's circuit is gone.
    Gone,
    /// No guest waits at the address of another end.
    NoGuest,
    /// The name has no address.
    NoSuchName,
    /// There are as many streams as may be.
    TooMany,
    /// The request is none.
    Malformed,
    /// It was not answered in time.
    TimedOut,
    /// The exit never lets this through, by its rules.
    Forbidden(DropReason),
    /// The exit lets this through at another time.
    TooMuchNow(DropReason),
    /// The connection by TCP could not be made.
    NotConnected(ErrorKind),
}

impl StreamError {
    /// Count the error, and return what is answered.
    pub fn counted(self, counters: &Counters) -> Reply {
        if let Some(reason) = self.counter() {
            counters.count(reason);
        }
        self.reply()
    }

    /// What is answered: an RFC 1928 code for each error.
    pub fn reply(self) -> Reply {
        match self {
            StreamError::NoCircuit => Reply::NetworkUnreachable,
            StreamError::NoGuest | StreamError::NoSuchName => Reply::HostUnreachable,
            StreamError::Gone | StreamError::TooMany | StreamError::Malformed | StreamError::TooMuchNow(_) => {
                Reply::GeneralFailure
            }
            StreamError::TimedOut => Reply::TtlExpired,
            StreamError::Forbidden(_) => Reply::NotAllowed,
            StreamError::NotConnected(kind) => match kind {
                ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => Reply::ConnectionRefused,
                ErrorKind::NetworkUnreachable => Reply::NetworkUnreachable,
                ErrorKind::HostUnreachable => Reply::HostUnreachable,
                ErrorKind::TimedOut => Reply::TtlExpired,
                ErrorKind::PermissionDenied => Reply::NotAllowed,
                _ => Reply::GeneralFailure,
            },
        }
    }

    /// What it is counted as; None for what the world, and not this node, has refused.
    fn counter(self) -> Option<DropReason> {
        match self {
            StreamError::NoCircuit => Some(DropReason::StreamNoCircuit),
            StreamError::Gone => Some(DropReason::UnknownCircuit),
            StreamError::TooMany => Some(DropReason::StreamTooMany),
            StreamError::Malformed => Some(DropReason::StreamMalformed),
            StreamError::TimedOut => Some(DropReason::StreamTimedOut),
            StreamError::Forbidden(reason) | StreamError::TooMuchNow(reason) => Some(reason),
            StreamError::NoGuest | StreamError::NoSuchName | StreamError::NotConnected(_) => None,
        }
    }
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        StreamError::NotConnected(error.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_world_refused_is_answered_and_not_counted() {
        let counters = Counters::default();
        let error = StreamError::from(io::Error::from(ErrorKind::ConnectionRefused));
        assert_eq!(error.counted(&counters), Reply::ConnectionRefused);
        assert_eq!(StreamError::NoSuchName.counted(&counters), Reply::HostUnreachable);
        assert_eq!(counters.all().count(), 0);
        assert_eq!(StreamError::Forbidden(DropReason::ExitPortDenied).counted(&counters), Reply::NotAllowed);
        assert_eq!(StreamError::TooMuchNow(DropReason::StreamTooFast).counted(&counters), Reply::GeneralFailure);
        assert_eq!(counters.get(DropReason::ExitPortDenied), 1);
        assert_eq!(counters.get(DropReason::StreamTooFast), 1);
    }
}
