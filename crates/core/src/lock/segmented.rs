//! One hot name split into many: contention divided by the number of segments.

use super::{handle::Handle, mutex::Mutex};
use crate::error::InvalidInput;

/// A lock in segments. Each key belongs to one segment, by a hash that is fixed in the
/// specification, so programs in other languages find the same one.
///
/// Segment `i` of `stock/42` is the mutex `stock/42#i`, and `i` is the FNV-1a hash (64 bits) of
/// the key's bytes modulo the number of segments.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// # let keeper = lockkeeper::testing::keeper().await;
/// let stock = keeper.segmented("stock/42", 100);
/// let guard = stock.for_key("user-17").lock().await?;
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Segmented {
    /// That of the segments' mutexes, with the name of the whole.
    pub(crate) handle: Handle,
    pub(crate) segments: u32,
}

impl Segmented {
    /// How many segments there are.
    pub fn segments(&self) -> u32 {
        self.segments
    }

    /// The segment that `key` belongs to.
    pub fn segment_of(&self, key: impl AsRef<[u8]>) -> u32 {
        (fnv1a(key.as_ref()) % u64::from(self.segments.max(1))) as u32
    }

    /// The mutex of the segment that `key` belongs to.
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Mutex {
        self.segment(self.segment_of(key))
    }

    /// The mutex of one segment, from 0. Locking a segment that does not exist fails.
    pub fn segment(&self, segment: u32) -> Mutex {
        if segment < self.segments {
            // An empty name stays empty, so that the error names the fault.
            let whole = self.handle.given();
            let name = if whole.is_empty() { String::new() } else { format!("{whole}#{segment}") };
            return Mutex { handle: self.handle.renamed(&name) };
        }
        let why = match self.segments {
            0 => "there are no segments; give at least 1".to_owned(),
            segments => format!("there is no segment {segment}; they are 0 to {}", segments - 1),
        };
        Mutex { handle: self.handle.clone().refused(InvalidInput::new(why)) }
    }
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published test vectors of the hash: other programs rely on them.
    #[test]
    fn the_hash_is_the_one_in_the_specification() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
