//! Little-endian fields from the front of a slice.

/// Reads fields from the front; `None` if there are too few bytes, and then nothing is consumed.
pub(super) trait FieldReader<'a> {
    fn take_bytes(&mut self, count: usize) -> Option<&'a [u8]>;

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take_bytes(N)?.first_chunk().copied()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a 32-bit length field.
    fn length32(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }

    /// Reads a 64-bit length field.
    fn length64(&mut self) -> Option<usize> {
        usize::try_from(self.u64()?).ok()
    }
}

impl<'a> FieldReader<'a> for &'a [u8] {
    fn take_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.split_at_checked(count)?;
        *self = rest;
        Some(head)
    }
}
