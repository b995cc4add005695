"""WordPress and DokuWiki of Debian on php-fpm, each by a file of `examples`, in headless Chromium:
installation, login, a page, an uploaded picture and addresses without a script."""

import hashlib
import json
import os
import pathlib
import re
import shutil

from support import php, picture, wire
from support.chromium import ChromiumCase
from support.mariadb import MariaDb

SHARE = pathlib.Path("/usr/share")
# Pictures of this side are longer than `upload-buffer`, and shorter than PHP's limit for uploads.
SIDE = 700
PASSWORD = "mill-Race 7391 by the river"
FOLDERS = "attic cache index locks log media media_attic media_meta meta pages tmp".split()
# The installation of DokuWiki shows this picture if a web server sends it.
PANIC = (
    "data/dont-panic-if-you-see-this-in-your-logs-it-means-your-directory-permissions-are-"
    "correct.png"
)
TEXT = "Flowing water ‹through› the mill."


class Application(ChromiumCase):
    """A copy of the application is in `self.site`."""

    only_named = True
    extensions = ()

    def setUp(self):
        super().setUp()
        self.assertTrue(php.program(), "php-fpm is missing: run scripts/setup test")
        self.picture = self.folder / "race.png"
        length = picture.write(self.picture, SIDE)
        self.assertGreater(length, 1 << 20)

    def copy(self, source, target, *left_out):
        """Copies a folder, with the files to which its links lead. Some names are left out."""
        self.assertTrue(source.exists(), f"{source} is missing: run scripts/setup applications")
        left_out = shutil.ignore_patterns(*left_out)
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=left_out)

    def start(self, example, folder):
        """Starts php-fpm, millrace with a file of `examples`, and the browser."""
        if os.getuid() == 0:
            for path in [self.site, *self.site.rglob("*")]:
                shutil.chown(path, "www-data", "www-data")
        self.fpm = php.PhpFpm(self.folder, extensions=self.extensions)
        self.addCleanup(self.fpm.stop)
        socket = "unix:/run/php/php-fpm.sock"
        self.proxy = self.example(example, {folder: self.site, socket: self.fpm.address})
        self.ready = len(self.proxy.lines)
        self.page = self.drive()

    def open(self, target):
        self.page.open(self.proxy.url + target)

    def text(self, selector):
        return self.page.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText")

    def see(self, selector):
        """Checks that the browser shows the uploaded picture, and that its bytes are unchanged."""
        shown = f"document.querySelector({json.dumps(selector)})"
        self.page.wait(f"{shown}?.complete && {shown}.naturalWidth > 0")
        self.assertEqual(self.page.evaluate(f"{shown}.naturalWidth"), SIDE)
        address = self.page.evaluate(f"{shown}.src")
        self.assertTrue(address.startswith(self.proxy.url), address)
        target = address[len(self.proxy.url) :]
        found = wire.get(self.proxy.address, target, host=self.proxy.addresses[0])
        digest = hashlib.sha256(self.picture.read_bytes()).hexdigest()
        self.assertEqual((found.status, found.digest), (200, digest), target)
        return target

    def refuse(self, *targets):
        """Checks that these files exist and that nothing of them is readable."""
        for target in targets:
            self.assertTrue((self.site / target).is_file(), target)
            found = wire.get(self.proxy.address, f"/{target}", host=self.proxy.addresses[0])
            self.assertEqual(found.status, 404, target)
            content = (self.site / target).read_bytes()
            self.assertFalse(content[:100] and content[:100] in found.body, target)

    def records(self):
        """Ends millrace; checks its output, its log, and that it sent the static files itself.
        Returns the records of the log."""
        self.page.open("about:blank")
        self.assertEqual(self.proxy.stop(), 0)
        # The applications are older than this PHP, which warns of a few lines.
        warning = re.compile(r"millrace: the program of \S+ wrote: PHP message: PHP (Warning|Dep)")
        others = [line for line in self.proxy.lines[self.ready :] if not warning.match(line)]
        self.assertEqual(others, ["millrace: draining"])
        records = [json.loads(line) for line in self.log.read_text().splitlines()]
        # The browser cancels what a page loads when it is left.
        failed = [each for each in records if each["reason"] not in (None, "client-closed")]
        failed += [each for each in records if (each["status"] or 0) > 500]
        self.assertEqual([each for each in failed if each["target"] not in self.refused], [])
        kinds = {}
        for each in records:
            path = each["target"].partition("?")[0]
            kind = path.rpartition(".")[2]
            is_static = kind in ("css", "js", "png", "svg", "gif", "woff2") and ".php/" not in path
            if not is_static or each["status"] == 404:
                continue
            self.assertEqual(each["origin"], None, path)
            self.assertEqual(each["file"], f"{self.site}{path}")
            kinds[kind] = kinds.get(kind, 0) + 1
        return records, kinds


class WordPress(Application):
    programs = ("chromium", "mariadb-install-db")
    extensions = (
        "mysqlnd mysqli ctype curl dom exif fileinfo gd iconv simplexml tokenizer xml xmlreader"
    ).split()

    def setUp(self):
        super().setUp()
        self.copy(SHARE / "wordpress", self.site)
        database = MariaDb(self.folder)
        self.addCleanup(database.stop)
        constants = {
            "DB_NAME": database.name,
            "DB_USER": database.user,
            "DB_PASSWORD": "",
            "DB_HOST": f"localhost:{database.path}",
            "WP_HTTP_BLOCK_EXTERNAL": True,
            "DISABLE_WP_CRON": True,
            "FS_METHOD": "direct",
        }
        lines = "".join(f"define('{n}', {json.dumps(v)});\n" for n, v in constants.items())
        (self.site / "wp-config.php").write_text(
            "<?php\nif (!defined('ABSPATH')) define('ABSPATH', __DIR__ . '/');\n"
            f"{lines}$table_prefix = 'wp_';\nrequire_once ABSPATH . 'wp-settings.php';\n"
        )
        self.start("php.toml", "/srv/www")

    def test_wordpress(self):
        self.install()
        self.log_in()
        address = self.upload()
        link = self.write(address)
        self.read(link)
        self.check()

    def install(self):
        """WordPress leads to its installation, and asks itself for an address without a script."""
        self.open("/")
        self.assertEqual(self.page.evaluate("location.pathname"), "/wp-admin/install.php")
        self.page.follow("#language-continue, [type=submit]")
        for field, text in (
            ("#weblog_title", "The mill"), ("#user_login", "miller"), ("#pass1", PASSWORD),
            ("#pass2", PASSWORD), ("#admin_email", "miller@interop.test"),
        ):
            self.page.fill(field, text)
        self.page.wait("!document.querySelector('#submit').disabled")
        self.page.follow("#submit")
        self.assertEqual(self.text(".install-success td, .form-table td"), "miller")

    def log_in(self):
        self.open("/wp-login.php")
        self.page.fill("#user_login", "miller")
        self.page.fill("#user_pass", PASSWORD)
        self.page.follow("#wp-submit")
        self.assertEqual(self.page.evaluate("location.pathname"), "/wp-admin/")
        self.assertIn("The mill", self.text("#wpadminbar"))

    def upload(self):
        """Uploads the picture and returns its address, as the programming interface has it."""
        self.open("/wp-admin/media-new.php?browser-uploader")
        self.page.choose_file("#async-upload", self.picture)
        self.page.follow("#html-upload")
        self.assertEqual(self.page.evaluate("location.pathname"), "/wp-admin/upload.php")
        media = self.page.evaluate("fetch('/wp-json/wp/v2/media').then(it => it.json())")
        self.assertEqual([each["title"]["rendered"] for each in media], ["race"])
        return media[0]["source_url"]

    def write(self, address):
        """Publishes a post with the picture in the block editor, and returns its address."""
        self.open("/wp-admin/post-new.php")
        self.page.wait("window.wp?.data?.select('core/editor')?.getCurrentPostId()")
        blocks = (
            f"<!-- wp:paragraph --><p>{TEXT}</p><!-- /wp:paragraph -->"
            '<!-- wp:image --><figure class="wp-block-image">'
            f'<img src="{address}" alt=""/></figure><!-- /wp:image -->'
        )
        self.page.evaluate(
            "(async () => { const {dispatch} = wp.data;"
            f"dispatch('core/block-editor').resetBlocks(wp.blocks.parse({json.dumps(blocks)}));"
            "dispatch('core/editor').editPost({title: 'Water wheel', status: 'publish'});"
            "await dispatch('core/editor').savePost(); })()"
        )
        self.assertTrue(
            self.page.evaluate("wp.data.select('core/editor').didPostSaveRequestSucceed()")
        )
        return self.page.evaluate("wp.data.select('core/editor').getPermalink()")

    def read(self, link):
        """Follows the address of the post from the front page."""
        path = link.removeprefix(self.proxy.url)
        self.assertRegex(path, r"^/\d{4}/\d\d/\d\d/water-wheel/$")
        self.open("/")
        self.page.follow(f'a[href="{link}"]')
        self.assertEqual(self.page.evaluate("location.pathname"), path)
        self.assertEqual(self.text("h1"), "Water wheel")
        self.assertEqual(self.text(".wp-block-post-content p"), TEXT)
        target = self.see(".wp-block-image img")
        self.assertRegex(target, r"^/wp-content/uploads/\d{4}/\d\d/race\.png$")
        self.open("/no/such/page/")
        self.assertIn("not be found", self.text("main"))
        self.link, self.target = path, target

    def check(self):
        self.refused = ["/wp-config.php", "/.htaccess"]
        self.refuse("wp-config.php", ".htaccess")
        records, kinds = self.records()
        self.assertGreater(min(kinds.get(kind, 0) for kind in ("css", "js", "png")), 0, kinds)
        by_target = {each["target"]: each for each in records}
        index = f"{self.site}/index.php"
        self.assertEqual(by_target[self.link]["file"], index)
        self.assertEqual(by_target["/wp-json/wp/v2/media"]["file"], index)
        self.assertEqual(by_target["/no/such/page/"]["status"], 404)
        self.assertEqual(by_target[self.target]["file"], f"{self.site}{self.target}")
        uploads = [each for each in records if each["target"] == "/wp-admin/media-new.php"]
        self.assertEqual([each["method"] for each in uploads], ["POST"])
        self.assertGreater(uploads[0]["bytes_from_client"], self.picture.stat().st_size)


class DokuWiki(Application):
    extensions = "ctype dom fileinfo gd iconv simplexml xml".split()

    def setUp(self):
        super().setUp()
        # Debian moves the folders "conf" and "data" out of the reach of web servers. The project
        # itself does not. Only root may read the files that are left out.
        self.copy(SHARE / "dokuwiki", self.site, "preload.php", "testing")
        settings = ("local.php", "users.auth.php", "acl.auth.php")
        self.copy(pathlib.Path("/etc/dokuwiki"), self.site / "conf", *settings)
        for name in FOLDERS:
            (self.site / "data" / name).mkdir(parents=True)
        picture.write(self.site / PANIC, 8)
        # Settings of the installation; its form has no fields for them.
        (self.site / "install.conf").write_text(
            "$conf['savedir'] = './data';\n$conf['userewrite'] = 2;\n"
        )
        with open(self.site / "conf/dokuwiki.php", "a") as settings:
            settings.write("$conf['savedir'] = './data';\n")
        self.start("dokuwiki.toml", "/srv/dokuwiki")

    def test_dokuwiki(self):
        self.install()
        self.log_in()
        self.upload()
        self.write()
        self.read()
        self.check()

    def install(self):
        self.open("/install.php")
        for field, text in (
            ("#title", "The mill"), ("#superuser", "miller"), ("#fullname", "Miller"),
            ("#email", "miller@interop.test"), ("#password", PASSWORD), ("#confirm", PASSWORD),
        ):
            self.page.fill(field, text)
        self.page.evaluate("document.querySelector('#pop').checked = false")
        self.page.follow("#process button")
        self.assertIn("configuration was finished successfully", self.text("body"))
        self.assertIn("The mill", (self.site / "conf/local.php").read_text())

    def log_in(self):
        self.open("/")
        self.assertIn("The mill", self.text("#dokuwiki__header"))
        self.page.follow("li.login a")
        self.page.fill("#dw__login [name=u]", "miller")
        self.page.fill("#dw__login [name=p]", PASSWORD)
        self.page.follow("#dw__login [type=submit]")
        self.assertIn("Miller", self.text("#dokuwiki__usertools"))

    def upload(self):
        """Uploads the picture by the form, which its script replaces by another one."""
        self.open("/lib/exe/mediamanager.php?ns=wiki")
        self.page.wait("document.querySelector('#mediamanager__uploader [type=file]')")
        self.page.choose_file("#mediamanager__uploader [type=file]", self.picture)
        self.page.wait("document.querySelector('#mediamanager__upload_button')?.disabled === false")
        self.page.click("#mediamanager__upload_button")
        done = "document.querySelector('#mediamanager__done_form')"
        self.page.wait(f"{done} && {done}.offsetParent")
        self.assertTrue((self.site / "data/media/wiki/race.png").is_file())

    def write(self):
        self.open("/doku.php/data?do=edit")
        text = f"====== Water wheel ======\n{TEXT} :-)\n\n{{{{wiki:race.png}}}}\n"
        self.page.fill("#wiki__text", text)
        self.page.follow("#edbtn__save")

    def read(self):
        self.open("/doku.php/data")
        self.assertEqual(self.text("h1.sectionedit1, #dokuwiki__content h1"), "Water wheel")
        self.assertIn(TEXT, self.text("#dokuwiki__content"))
        target = self.see("#dokuwiki__content img.media")
        self.assertRegex(target, r"^/lib/exe/fetch\.php/wiki:race\.png")
        self.target = target

    def check(self):
        hidden = [
            PANIC, "conf/users.auth.php", "conf/local.php", "conf/mime.conf", "data/pages/data.txt",
            "data/media/wiki/race.png", "inc/lang/en/install.html",
            "inc/init.php", "bin/dwpage.php", "vendor/composer/installed.json", "VERSION",
            "conf/.htaccess",
        ]
        self.refuse(*hidden)
        self.refused = ["/favicon.ico", *(f"/{each}" for each in hidden)]
        records, kinds = self.records()
        self.assertGreater(min(kinds.get(kind, 0) for kind in ("png", "svg")), 0, kinds)
        by_target = {each["target"]: each for each in records}
        self.assertEqual(by_target["/doku.php/data"]["file"], f"{self.site}/doku.php")
        self.assertEqual(by_target[self.target]["file"], f"{self.site}/lib/exe/fetch.php")
        styles = [each for each in records if each["target"].startswith("/lib/exe/css.php")]
        self.assertEqual({each["file"] for each in styles}, {f"{self.site}/lib/exe/css.php"})
        sent = max(each["bytes_from_client"] for each in records)
        self.assertGreater(sent, self.picture.stat().st_size - 1)
