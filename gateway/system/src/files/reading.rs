//! Reading of files that others provide. A pipe in place of a file does not block, and an endless one does not fill the memory.

use std::fs::{self, File, FileType};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open as open_by};

/// Maximum size of a file that a person, or a program for a person, has written: settings, keys, bundles of certificates.
pub const SMALL_FILE_LIMIT_BYTES: u64 = 1024 * 1024;
/// Paths by which a shell passes pipes (`<(command)`), which another process writes.
const HANDED_OVER: [&str; 3] = ["/dev/fd/", "/dev/stdin", "/proc/self/fd/"];

/// Opens a regular file for reading, or a pipe passed by a shell.
///
/// # Errors
/// Those of the file system; and if it is another kind of file.
pub fn open(path: &Path) -> io::Result<File> {
    // Who opens a pipe would wait for somebody who writes into it.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(open_by(path, flags, Mode::empty())?);
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    if !kind.is_dir() && HANDED_OVER.iter().any(|place| path.to_string_lossy().starts_with(place)) {
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        return Ok(file);
    }
    Err(no_file(kind))
}

/// Checks that a regular file has this name, or nothing. For callers that write it without reading it.
///
/// # Errors
/// Those of the file system; and if it is another kind of file.
pub fn no_other_than_file(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.is_file() => Ok(()),
        Ok(found) => Err(no_file(found.file_type())),
    }
}

fn no_file(kind: FileType) -> io::Error {
    let (what, error) = if kind.is_dir() {
        ("a folder", ErrorKind::IsADirectory)
    } else if kind.is_fifo() {
        ("a named pipe", ErrorKind::InvalidInput)
    } else if kind.is_socket() {
        ("a socket", ErrorKind::InvalidInput)
    } else {
        ("a device", ErrorKind::InvalidInput)
    };
    io::Error::new(error, format!("this is {what}, not a regular file"))
}

/// Returns the contents of a file, opened like by [`open`]; at most so many bytes.
///
/// # Errors
/// Those of [`open`]; and if there is more.
pub fn read(path: &Path, limit_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= limit_bytes) {
        return Ok(bytes);
    }
    Err(io::Error::new(
        ErrorKind::FileTooLarge,
        format!("it has more than {limit_bytes} bytes, which is more than is read of such a file"),
    ))
}

/// Returns the contents of a file like [`read`], as text.
///
/// # Errors
/// Those of [`read`]; and if it is not text.
pub fn read_text(path: &Path, limit_bytes: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, limit_bytes)?);
    text.map_err(|_| io::Error::new(ErrorKind::InvalidData, "not UTF-8 text"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn a_file_is_read_to_its_limit_and_no_further() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "1234").unwrap();
        symlink("file", &link).unwrap();
        assert_eq!(
            (read(&file, 4).unwrap(), read_text(&link, 5).unwrap()),
            (b"1234".to_vec(), "1234".to_owned())
        );
        let error = read(&file, 3).unwrap_err();
        assert!(
            error.kind() == ErrorKind::FileTooLarge && error.to_string().contains("more than 3 bytes"),
            "{error}"
        );
        fs::write(&file, b"\xff").unwrap();
        assert_eq!(read_text(&file, 3).unwrap_err().kind(), ErrorKind::InvalidData);
        fs::write(&file, b"").unwrap();
        assert_eq!(read(&file, 0).unwrap(), b"");
        assert_eq!(read(&folder.path().join("none"), 1).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn refuses_non_regular_files_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, socket, link) = (folder.path().join("pipe"), folder.path().join("socket"), folder.path().join("link"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let _listening = UnixListener::bind(&socket).unwrap();
        symlink("pipe", &link).unwrap();
        for (path, what) in [
            (pipe.as_path(), "a named pipe"),
            (&link, "a named pipe"),
            (folder.path(), "a folder"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            for error in [read(path, 10).unwrap_err(), no_other_than_file(path).unwrap_err()] {
                assert!(error.to_string().contains(what), "{error}");
            }
        }
        fs::write(folder.path().join("file"), "").unwrap();
        ["file", "none"]
            .iter()
            .for_each(|name| no_other_than_file(&folder.path().join(name)).unwrap());
        read(&socket, 10).unwrap_err();
    }

    #[test]
    fn reads_pipes_from_shell_process_substitution() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        // Whoever writes is later than whoever reads.
        let reading = std::thread::spawn({
            let path = path.clone();
            move || read_text(Path::new(&path), 5)
        });
        writer.write_all(b"hel").unwrap();
        writer.write_all(b"lo").unwrap();
        drop(writer);
        assert_eq!(reading.join().unwrap().unwrap(), "hello");
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(&[0; 4096]).unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        assert_eq!(read(Path::new(&path), 5).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
}
