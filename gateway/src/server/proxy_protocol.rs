//! PROXY protocol, version 2: a balancer that ends no TLS says first for which client it passes a connection on ("The PROXY protocol", by
//! haproxy, 2.2).
//!
//! Version 1, which is text, is refused, and so is any header without a TCP connection over IP. The client could only be guessed, and the
//! balancer's own address may have privileges.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// First bytes of each header. No TLS begins with them.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Length of the fixed part: signature; version and command; family and protocol; two bytes with the length of the rest.
const FIXED_BYTES: usize = 16;
/// Longest header: one that fits into the smallest segment that every host takes (576 - 40), as a balancer has to send it at once.
const HEADER_LIMIT_BYTES: usize = 536;
/// Version of the protocol that is accepted.
const VERSION: u8 = 2;
/// Commands: a connection of the balancer's own, such as a health check; one that it passes on.
const LOCAL: u8 = 0;
const PROXY: u8 = 1;
/// Values for address family and protocol: TCP over IPv4, and over IPv6.
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// Client that the connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionOwner {
    /// It is the balancer's own connection.
    Own,
    /// It is passed on for a client with this address.
    Of(SocketAddr),
}

/// Error for which the client is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeaderError {
    /// It was closed, or broken, before the header was over.
    #[error("it ended within the header: {0}")]
    Io(#[from] io::Error),
    #[error("it took too long")]
    Late,
    /// It begins with something else: TLS, or text of version 1.
    #[error("it does not begin with one")]
    Signature,
    #[error("the header's version is {0}, not 2")]
    Version(u8),
    #[error("the header's command is {0}, neither LOCAL nor PROXY")]
    Command(u8),
    #[error("the header is longer than {HEADER_LIMIT_BYTES} bytes: {0}")]
    Long(usize),
    /// The family is UNSPEC, UDP, a UNIX socket, or an undefined value.
    #[error("the header names no TCP connection over IPv4 or IPv6, but is of the family and protocol {0:#04x}")]
    Family(u8),
    #[error("the header is too short for its addresses")]
    Addresses,
    #[error("what stands behind the header's addresses is not made of types, lengths and values")]
    Values,
}

/// Reads a header, and no byte after it.
///
/// # Errors
/// [`HeaderError`], as soon as it is known.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<ConnectionOwner, HeaderError> {
    let mut fixed = Vec::with_capacity(FIXED_BYTES);
    while fixed.len() < FIXED_BYTES {
        let left = u64::try_from(FIXED_BYTES - fixed.len()).unwrap_or(0);
        if (&mut *stream).take(left).read_buf(&mut fixed).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if !SIGNATURE.iter().zip(&fixed).all(|(expected, byte)| expected == byte) {
            return Err(HeaderError::Signature);
        }
    }
    let fixed = Fixed::parse(&fixed)?;
    let mut rest = vec![0; fixed.rest_bytes];
    stream.read_exact(&mut rest).await?;
    fixed.owner(&rest)
}

/// Contents of a header's fixed part.
#[derive(Debug, PartialEq, Eq)]
struct Fixed {
    is_local: bool,
    family: u8,
    rest_bytes: usize,
}

impl Fixed {
    fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        let Some([version_and_command, family, high, low]) = bytes.strip_prefix(SIGNATURE) else {
            return Err(HeaderError::Signature);
        };
        let (version, command) = (version_and_command >> 4, version_and_command & 0xf);
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        let is_local = match command {
            LOCAL => true,
            PROXY => false,
            other => return Err(HeaderError::Command(other)),
        };
        let rest_bytes = usize::from(u16::from_be_bytes([*high, *low]));
        let bytes = FIXED_BYTES.saturating_add(rest_bytes);
        if bytes > HEADER_LIMIT_BYTES {
            return Err(HeaderError::Long(bytes));
        }
        Ok(Self {
            is_local,
            family: *family,
            rest_bytes,
        })
    }

    fn owner(&self, rest: &[u8]) -> Result<ConnectionOwner, HeaderError> {
        if self.is_local {
            // Whatever the header says beside that is to be discarded, its family too.
            return Ok(ConnectionOwner::Own);
        }
        let (address, rest) = match self.family {
            TCP_OVER_IPV4 => source::<4>(rest)?,
            TCP_OVER_IPV6 => source::<16>(rest)?,
            other => return Err(HeaderError::Family(other)),
        };
        let ([high, low, ..], values) = rest.split_first_chunk::<4>().ok_or(HeaderError::Addresses)?;
        skip(values)?;
        Ok(ConnectionOwner::Of(SocketAddr::new(address, u16::from_be_bytes([*high, *low]))))
    }
}

/// Returns the source's address, and the bytes after the destination's, which is not used. An IPv4 address that is written as IPv6 becomes
/// IPv4.
fn source<const BYTES: usize>(bytes: &[u8]) -> Result<(IpAddr, &[u8]), HeaderError>
where
    IpAddr: From<[u8; BYTES]>,
{
    let (source, rest) = bytes.split_first_chunk::<BYTES>().ok_or(HeaderError::Addresses)?;
    let (_, rest) = rest.split_first_chunk::<BYTES>().ok_or(HeaderError::Addresses)?;
    Ok((IpAddr::from(*source).to_canonical(), rest))
}

/// Checks the form of the type-length-value fields. None of their contents is believed here.
fn skip(mut values: &[u8]) -> Result<(), HeaderError> {
    while let [_, high, low, rest @ ..] = values {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        values = rest.get(length..).ok_or(HeaderError::Values)?;
    }
    values.is_empty().then_some(()).ok_or(HeaderError::Values)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a header of these parts, with its length.
    fn header(version_and_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [SIGNATURE.as_slice(), &[version_and_command, family], &length, rest].concat()
    }

    const V4: [u8; 12] = [192, 0, 2, 7, 198, 51, 100, 1, 0xab, 0xcd, 0x58, 0x5f];

    /// Returns the result of reading these bytes, and how many of them were read.
    fn reading(bytes: &[u8]) -> (Result<ConnectionOwner, HeaderError>, usize) {
        let mut left = bytes;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let whose = runtime.block_on(read(&mut left));
        (whose, bytes.len() - left.len())
    }

    #[track_caller]
    fn is(header: &[u8], expected: ConnectionOwner) {
        // What comes after the header stays where it is.
        let (whose, read) = reading(&[header, b"\x16\x03\x01"].concat());
        assert_eq!((whose.unwrap(), read), (expected, header.len()));
    }

    #[track_caller]
    fn refused(header: &[u8], expected: &str) {
        let error = reading(header).0.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    fn v6(source: &str) -> Vec<u8> {
        let source: std::net::Ipv6Addr = source.parse().unwrap();
        [&source.octets()[..], &[0xff; 16], &[0xab, 0xcd, 0x58, 0x5f]].concat()
    }

    #[test]
    fn reads_the_source_address() {
        is(&header(0x21, 0x11, &V4), ConnectionOwner::Of("192.0.2.7:43981".parse().unwrap()));
        is(
            &header(0x21, 0x21, &v6("2001:db8::7")),
            ConnectionOwner::Of("[2001:db8::7]:43981".parse().unwrap()),
        );
        is(
            &header(0x21, 0x21, &v6("::ffff:192.0.2.7")),
            ConnectionOwner::Of("192.0.2.7:43981".parse().unwrap()),
        );
    }

    #[test]
    fn local_command_ignores_addresses() {
        for (family, rest) in [(0, &[][..]), (0x11, &V4), (0x11, &[1]), (0x21, &[]), (0x77, &[9; 520])] {
            is(&header(0x20, family, rest), ConnectionOwner::Own);
        }
    }

    #[test]
    fn skips_tlvs_within_their_bounds() {
        let node = ConnectionOwner::Of("192.0.2.7:43981".parse().unwrap());
        let with = |values: &[u8]| header(0x21, 0x11, &[&V4, values].concat());
        is(&with(&[4, 0, 0]), node);
        is(&with(&[3, 0, 4, 1, 2, 3, 4, 0xee, 0, 1, 9]), node);
        let largest = [&[4, 1, 0xf9][..], &[0; 505]].concat();
        assert_eq!(with(&largest).len(), HEADER_LIMIT_BYTES);
        is(&with(&largest), node);
        for broken in [&[4][..], &[4, 0], &[4, 0, 1], &[4, 0xff, 0xff, 1], &[4, 0, 0, 4]] {
            refused(&with(broken), "types, lengths and values");
        }
    }

    #[test]
    fn each_altered_field_is_refused() {
        let good = header(0x21, 0x11, &V4);
        for byte in 0..SIGNATURE.len() {
            let mut altered = good.clone();
            altered[byte] ^= 1;
            // Not a byte more is waited for.
            refused(&altered[..=byte], "does not begin with one");
        }
        for version in (0..16).filter(|version| *version != 2) {
            refused(&header(version << 4 | 1, 0x11, &V4), "version");
        }
        for command in 2..16 {
            refused(&header(0x20 | command, 0x11, &V4), "command");
        }
        // UNSPEC, UDP and UNIX, which are written down; and what is not.
        let rest = [0; 216];
        for family in (0..=u8::MAX).filter(|family| ![0x11, 0x21].contains(family)) {
            refused(&header(0x21, family, &rest), "names no TCP connection");
        }
        for length in 0..12 {
            refused(&header(0x21, 0x11, &V4[..length]), "too short for its addresses");
        }
        for length in 0..36 {
            refused(&header(0x21, 0x21, &v6("2001:db8::7")[..length]), "too short for its addresses");
        }
        // The addresses of IPv4 are no addresses of IPv6, and the other way round.
        refused(&header(0x21, 0x21, &V4), "too short for its addresses");
        refused(&header(0x21, 0x11, &v6("2001:db8::7")), "types, lengths and values");
        for length in 521..=540 {
            refused(&header(0x20, 0, &vec![0; length]), "longer than 536");
        }
        refused(&header(0x20, 0, &[0; 65535])[..16], "longer than 536");
        for length in 0..good.len() {
            refused(&good[..length], "ended within the header");
        }
    }

    #[test]
    fn refuses_version_1_and_tls_at_first_byte() {
        refused(b"PROXY TCP4 192.0.2.7 198.51.100.1 43981 22623\r\n", "does not begin with one");
        refused(b"P", "does not begin with one");
        refused(b"\x16", "does not begin with one");
    }

    proptest! {
        #[test]
        fn never_reads_beyond_the_header_limit(
            fixed in proptest::bool::ANY,
            version_and_command in prop_oneof![Just(0x20), Just(0x21), any::<u8>()],
            family in prop_oneof![Just(0x11), Just(0x21), any::<u8>()],
            announced in any::<u16>(),
            rest in proptest::collection::vec(any::<u8>(), 0..700),
        ) {
            let length = announced.to_be_bytes();
            let bytes = match fixed {
                true => [SIGNATURE.as_slice(), &[version_and_command, family], &length, &rest].concat(),
                false => rest,
            };
            let (whose, read) = reading(&bytes);
            prop_assert!(read <= HEADER_LIMIT_BYTES);
            if whose.is_ok() {
                prop_assert_eq!(read, FIXED_BYTES + usize::from(announced));
            }
        }
    }
}
