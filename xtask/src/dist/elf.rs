//! What an ELF file wants of the system: System V ABI, "Program Header" and "Dynamic Section". 64 bits, little endian.

use anyhow::{Context, bail, ensure};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;

/// An error if the file asks for a loader or for a library.
pub(crate) fn check_static(file: &[u8]) -> anyhow::Result<()> {
    ensure!(file.starts_with(b"\x7fELF\x02\x01"), "not an ELF file of 64 bits, little endian");
    let table = number(file, 0x20, 8)?;
    let (size, count) = (number(file, 0x36, 2)?, number(file, 0x38, 2)?);
    ensure!(size >= 56 && count > 0, "no program headers of the usual size");
    let mut loads = 0;
    for index in 0..count {
        let at = table + index * size;
        let kind = u32::try_from(number(file, at, 4)?)?;
        let (offset, length) = (number(file, at + 8, 8)?, number(file, at + 32, 8)?);
        match kind {
            PT_LOAD => loads += 1,
            PT_INTERP => bail!("it asks for a loader"),
            // One that can be loaded anywhere has this without needing anything.
            PT_DYNAMIC => {
                for entry in (offset..offset + length).step_by(16) {
                    ensure!(number(file, entry, 8)? != DT_NEEDED, "it asks for a library");
                }
            }
            _ => {}
        }
    }
    ensure!(loads > 0, "it has nothing to load");
    Ok(())
}

/// The number of `width` bytes at `at`.
fn number(file: &[u8], at: u64, width: usize) -> anyhow::Result<u64> {
    let at = usize::try_from(at)?;
    let bytes = file.get(at..at + width).context("it ends within its headers")?;
    Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with these program headers, and a dynamic section with these tags.
    fn file(kinds: &[u32], tags: &[u64]) -> Vec<u8> {
        let table = 64;
        let dynamic = table + 56 * kinds.len() as u64;
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        file[0x20..0x28].copy_from_slice(&u64::to_le_bytes(table));
        file[0x36..0x38].copy_from_slice(&56_u16.to_le_bytes());
        file[0x38..0x3a].copy_from_slice(&(kinds.len() as u16).to_le_bytes());
        for kind in kinds {
            let mut header = [0; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&dynamic.to_le_bytes());
            header[32..40].copy_from_slice(&(16 * tags.len() as u64).to_le_bytes());
            file.extend_from_slice(&header);
        }
        for tag in tags {
            file.extend_from_slice(&tag.to_le_bytes());
            file.extend_from_slice(&[0; 8]);
        }
        file
    }

    #[test]
    fn a_loader_or_a_library_is_noticed() {
        let of = |kinds: &[u32], tags: &[u64]| check_static(&file(kinds, tags)).map_err(|error| error.to_string());
        assert_eq!(of(&[PT_LOAD], &[]), Ok(()));
        assert_eq!(of(&[PT_LOAD, PT_DYNAMIC], &[5, 6, 0]), Ok(()), "position independent");
        assert_eq!(of(&[PT_LOAD, PT_DYNAMIC], &[5, DT_NEEDED, 0]).unwrap_err(), "it asks for a library");
        assert_eq!(of(&[PT_INTERP, PT_LOAD], &[]).unwrap_err(), "it asks for a loader");
        assert!(of(&[], &[]).is_err());
        assert!(check_static(b"#!/bin/sh").is_err());
        let whole = file(&[PT_LOAD, PT_DYNAMIC], &[5, 0]);
        assert!(check_static(&whole[..whole.len() - 17]).is_err(), "cut");
    }

    #[test]
    fn a_program_that_tests_run_in_is_dynamic() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let is_glibc = cfg!(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static")));
        assert_eq!(check_static(&own).is_err(), is_glibc);
    }
}
