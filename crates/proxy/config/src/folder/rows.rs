//! The rows of the table of options for folders.

use crate::option_row::row;
use crate::options::{Group, OptionRow, Scope};
use crate::value_type::ValueType;
use Group::Files;
use Scope::Folder;

impl OptionRow {
    /// The rows for the folder of a route.
    pub(crate) const FOLDER: &'static [Self] = &[
        row(Folder, Files, "folder", ValueType::Folder, "(none)")
            .only_in_files()
            .summary("Serve the files of this directory")
            .detail(
                "The path of the route must end with /, and is removed before the file is looked \
                 for. If the route also has origins, they receive each request that is not a \
                 GET or HEAD, or for which the directory has no file. The directory is opened at \
                 start, and again at each reload. With the sandbox, a reload can open another \
                 directory only below those of the start; see sandbox-folder.",
            ),
        row(Folder, Files, "cgi", ValueType::Folder, "(none)")
            .summary("Run the programs of this directory by CGI")
            .detail(
                "In a file, the path of the route must end with /. The first part of the rest of \
                 a path that names an executable file below the directory is the program, and \
                 what follows is its PATH_INFO. On the command line, the programs are below \
                 /cgi-bin/. Files below the directory are never sent. Symbolic links are not \
                 followed. Programs run as cgi-user, within the limits cgi_programs, cgi_ms, \
                 cgi_memory_bytes and cgi_processes, and are killed when the connection of the \
                 client breaks. A reload can change these directories if the process was started \
                 with cgi. Not together with folder, origins and fastcgi.",
            ),
        row(Folder, Files, "internal", ValueType::Switch, "off")
            .summary("Refuse requests of clients for this directory with 404")
            .detail("Its files are sent if X-Accel-Redirect names them; see sendfile-path."),
        row(Folder, Files, "extensions", ValueType::ExtensionPattern, ".php")
            .repeatable(16)
            .not_empty()
            .summary("Files with these extensions are scripts, which fastcgi runs")
            .detail(
                "The part of the path after the script is PATH_INFO. No directory of the \
                 configuration sends such files or copies of them, whether by folder or by \
                 sendfile-path. Used only together with fastcgi.",
            ),
        row(Folder, Files, "index", ValueType::FileName, "index.html")
            .repeatable(16)
            .summary("File that stands for its directory")
            .detail("The first that exists is served. An empty list: none."),
        row(Folder, Files, "listing", ValueType::Switch, "off")
            .summary("List directories without an index file"),
        row(Folder, Files, "hide", ValueType::NamePattern, "(none)")
            .repeatable(256)
            .summary("Do not serve files and directories with such a name")
            .detail(
                "They count as missing wherever they are in a path, or in the path to which a \
                 symbolic link leads, except in PATH_INFO. So do names that begin with a dot, \
                 except .well-known, in any case.",
            ),
        row(Folder, Files, "try-files", ValueType::TryFile, "({path})")
            .repeatable(32)
            .summary("Where to look for the file of a request, in this order")
            .detail(
                "{path} stands for the path of the request, so {path}.html serves /about from \
                 about.html. The values replace the default.",
            ),
        row(Folder, Files, "fallback", ValueType::FilePath, "(none)")
            .summary("File for requests that have none, such as the page of an application")
            .detail(
                "It is sent with status 200. If it is a script, such as /index.php, fastcgi runs \
                 it for all methods, with the path of the request in REQUEST_URI.",
            ),
        row(Folder, Files, "precompressed", ValueType::Switch, "on")
            .summary("Serve FILE.br, FILE.zst or FILE.gz to clients that accept the coding")
            .detail("Such a file lies beside FILE and must not be older."),
        row(Folder, Files, "media-type", ValueType::MediaType, "(that of a built-in table)")
            .repeatable(256)
            .summary("Media type of files with this extension")
            .detail(
                "It is sent without the charset. Files with an unknown extension are \
                 application/octet-stream.",
            ),
        row(Folder, Files, "charset", ValueType::Charset, "utf-8")
            .summary("Charset that is added to the media types of text"),
        row(
            Folder,
            Files,
            "program-extensions",
            ValueType::ExtensionPattern,
            "(.php*, .phtml, .phar, .cgi, .fcgi, .pl, .py, .rb, .lua, .jsp, .asp*, .inc)",
        )
        .repeatable(64)
        .summary("Never send files with these extensions, which are programs")
        .detail(
            "Copies that editors make of them, such as a.php~, are not sent either. The values \
             replace the default. An empty list: all files are sent, except scripts of a route \
             with fastcgi.",
        ),
        row(Folder, Files, "file-cache-control", ValueType::CacheControl, "off")
            .summary("Cache-Control of responses with files"),
        row(Folder, Files, "symlinks", ValueType::Keyword(&["inside", "none"]), "inside")
            .summary("Which symbolic links to follow")
            .detail(
                "inside: those that lead to a file below the directory or below one of allow-path. \
                 A directory that is itself a link is always followed.",
            ),
        row(Folder, Files, "allow-path", ValueType::Folder, "(none)")
            .repeatable(64)
            .summary("Let symbolic links also lead into this directory"),
        row(Folder, Files, "file-check", ValueType::Duration, "1s")
            .summary("How long to serve a file before checking whether it has changed")
            .detail("0s: check at each request."),
    ];
}
