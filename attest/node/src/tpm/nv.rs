//! Certificates in the TPM's NV memory (TCG EK Credential Profile 2.6, 2.2.1).

use std::ops::RangeInclusive;

use tss_esapi::Context;
use tss_esapi::handles::{NvIndexHandle, NvIndexTpmHandle, TpmHandle};
use tss_esapi::interface_types::resource_handles::NvAuth;
use tss_esapi::structures::MaxNvBuffer;

use super::error::Doing as _;
use super::retry::{EMPTY_PASSWORD, UNAUTHORIZED};
use super::warning::Warning;
use super::{TpmDevice, TpmError};

/// NV indexes of EK certificates: low range, high range, and the issuers' certificates after them.
pub(super) const CERTIFICATES: RangeInclusive<u32> = 0x01c0_0002..=0x01c0_00ff;
/// NV indexes of the certificates of the EK certificate's issuers, concatenated, and split at the end of a full index.
pub(super) const CHAIN: RangeInclusive<u32> = 0x01c0_0100..=0x01c0_01ff;

/// Largest NV index read. Certificates are 1 to 2 KiB; Intel's chains fill a few indexes of 1 to 2 KiB.
const INDEX_LIMIT_BYTES: usize = 8 * 1024;
/// Maximum length of the issuers' certificates, in bytes: the gateway's limit of eight certificates, with room.
const CHAIN_LIMIT_BYTES: usize = 24 * 1024;
/// Most intermediate certificates sent: the gateway accepts eight.
const CHAIN_LIMIT_CERTIFICATES: usize = 8;
/// Maximum number of readings of an index until two agree.
const READINGS_LIMIT: usize = 4;
/// Bytes read by one command: TPM_PT_NV_BUFFER_MAX is 512 at the least on PC Client TPMs (PTP 1.05).
const CHUNK_BYTES: usize = 512;

/// The operation, as messages name it.
const READING: &str = "reading a certificate from the TPM's NV memory";

/// Content of an NV index.
enum NvContent {
    There(Vec<u8>),
    /// The index is defined, but was not written yet.
    NotYet,
    /// Larger than the limit [`INDEX_LIMIT_BYTES`].
    TooLarge,
}

/// Certificates of the EK certificate's issuers that a TPM carries.
#[derive(Debug, Clone, Default)]
pub struct IssuerCertificates {
    /// DER, as many as the gateway accepts.
    pub certificates: Vec<Vec<u8>>,
    /// The first NV index of them that could not be read. The certificates before it were.
    pub unread: Option<UnreadIssuers>,
}

/// Certificates of issuers that are in NV memory and could not be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the certificates of the EK's issuers in NV index {index:#010x} could not be read: {error}")]
pub struct UnreadIssuers {
    /// The NV index that has the certificates.
    pub index: u32,
    /// The error of the attempt to read it.
    pub error: TpmError,
}

impl TpmDevice {
    /// The issuers' certificates that the TPM carries; none is an everyday answer.
    ///
    /// # Errors
    /// [`TpmError::Busy`]; [`TpmError::Lockout`] if the TPM does not even list its NV indexes.
    pub fn intermediates(&mut self) -> Result<IssuerCertificates, TpmError> {
        let (mut bytes, mut unread) = (Vec::new(), None);
        let indexes = self.handles(*CHAIN.start(), *CHAIN.end()).or_else(|error| {
            if error.is_temporary() {
                return Err(error);
            }
            let index = *CHAIN.start();
            unread = Some(UnreadIssuers { index, error });
            Ok(Vec::new())
        });
        for index in indexes? {
            let error = match self.nv_read(index) {
                Ok(part) if bytes.len() + part.len() <= CHAIN_LIMIT_BYTES => {
                    bytes.extend(part);
                    continue;
                }
                Ok(_) => TpmError::Unexpected {
                    what: "more certificates of issuers than are read",
                },
                Err(error @ TpmError::Busy { .. }) => return Err(error),
                // The chain is a convenience: the gateway may know the intermediates itself. So it is not waited for in lockout.
                Err(error) => error,
            };
            unread = Some(UnreadIssuers { index, error });
            break;
        }
        let certificates = split_certificates(&bytes);
        Ok(IssuerCertificates { certificates, unread })
    }

    /// Returns the whole content of an NV index that is readable without authorization.
    pub(super) fn nv_read(&mut self, index: u32) -> Result<Vec<u8>, TpmError> {
        let handle = TpmHandle::from(NvIndexTpmHandle::new(index).doing(READING)?);
        let object = self.open_handle(handle, READING)?;
        let content = self.nv_read_open(NvIndexHandle::from(object));
        self.close(object);
        match content? {
            NvContent::There(content) => Ok(content),
            NvContent::NotYet => Err(TpmError::Unwritten { index }),
            NvContent::TooLarge => Err(TpmError::Unexpected {
                what: "an NV index larger than any certificate",
            }),
        }
    }

    /// Reads an index that another process may write meanwhile: returns the content on which two readings agree.
    pub(super) fn nv_read_settled(&mut self, index: u32) -> Result<Vec<u8>, TpmError> {
        let mut before = self.nv_read(index)?;
        for _ in 1..READINGS_LIMIT {
            let content = self.nv_read(index)?;
            if content == before {
                return Ok(content);
            }
            before = content;
        }
        Err(TpmError::Unexpected {
            what: "different content at each reading of an NV index",
        })
    }

    fn nv_read_open(&mut self, index: NvIndexHandle) -> Result<NvContent, TpmError> {
        let (public, _) = self.run(READING, UNAUTHORIZED, |context| context.nv_read_public(index))?;
        let size = public.data_size();
        if size > INDEX_LIMIT_BYTES {
            return Ok(NvContent::TooLarge);
        }
        // Read although nothing is there yet: to read is what has some TPMs fetch it.
        match self.nv_read_bytes(index, size) {
            Ok(content) => Ok(NvContent::There(content)),
            Err(error) if !public.attributes().written() && !error.is_temporary() => Ok(NvContent::NotYet),
            Err(error) => Err(error),
        }
    }

    fn nv_read_bytes(&mut self, index: NvIndexHandle, size: usize) -> Result<Vec<u8>, TpmError> {
        let mut content = Vec::with_capacity(size);
        while content.len() < size {
            // Both fit in 16 bits: the size is bounded above.
            let length = u16::try_from((size - content.len()).min(CHUNK_BYTES)).unwrap_or(u16::MAX);
            let offset = u16::try_from(content.len()).unwrap_or(u16::MAX);
            let chunk = self.run_unless_locked_out(READING, EMPTY_PASSWORD, |context| nv_read_chunk(context, index, length, offset))?;
            if chunk.is_empty() {
                break;
            }
            content.extend_from_slice(&chunk);
        }
        Ok(content)
    }
}

/// Reads with the authorization of the index. If that is refused, reads with the owner's, which no lockout affects.
fn nv_read_chunk(context: &mut Context, index: NvIndexHandle, length: u16, offset: u16) -> Result<MaxNvBuffer, tss_esapi::Error> {
    let refused = match context.nv_read(NvAuth::NvIndex(index), index, length, offset) {
        Err(error) => error,
        read => return read,
    };
    match Warning::from_error(&refused) {
        None => context.nv_read(NvAuth::Owner, index, length, offset),
        // The lockout is the reason, whatever keeps the owner from reading.
        Some(Warning::LOCKOUT) => context.nv_read(NvAuth::Owner, index, length, offset).map_err(|_| refused),
        Some(_) => Err(refused),
    }
}

/// Cuts concatenated certificates apart at the length of each outer SEQUENCE; unwritten NV (0xFF) and zeros are padding.
fn split_certificates(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut certificates = Vec::new();
    while certificates.len() < CHAIN_LIMIT_CERTIFICATES {
        let padding = bytes.iter().take_while(|byte| matches!(byte, 0x00 | 0xff)).count();
        bytes = bytes.get(padding..).unwrap_or_default();
        // SEQUENCE with a length of two bytes: no certificate is shorter than 256 bytes or longer than 64 KiB.
        let [0x30, 0x82, high, low, ..] = bytes else { break };
        let length = 4 + usize::from(u16::from_be_bytes([*high, *low]));
        let Some((certificate, rest)) = bytes.split_at_checked(length) else {
            break;
        };
        certificates.push(certificate.to_vec());
        bytes = rest;
    }
    certificates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(length: u16) -> Vec<u8> {
        let [high, low] = length.to_be_bytes();
        let mut bytes = vec![0x30, 0x82, high, low];
        bytes.resize(4 + usize::from(length), 0x55);
        bytes
    }

    fn check(parts: &[Vec<u8>], expect: usize) {
        assert_eq!(split_certificates(&parts.concat()).len(), expect);
    }

    #[test]
    fn nv_data_is_split_into_certificates() {
        check(&[], 0);
        check(&[certificate(300)], 1);
        check(&[certificate(300), certificate(1000)], 2);
        check(&[certificate(300), vec![0xff; 100]], 1);
        check(&[certificate(300), vec![0; 100], certificate(400), vec![0xff; 3]], 2);
        check(&[vec![0xff; 512]], 0);
        check(&[certificate(300), vec![0x31; 30]], 1);
        check(&[certificate(300), vec![0x30, 0x82, 0xff]], 1);
        check(&[certificate(300), vec![0x30, 0x82, 0x01, 0x00, 1]], 1);
        check(&vec![certificate(300); 20], CHAIN_LIMIT_CERTIFICATES);
    }
}
