"""A page of Chromium, which a test opens, fills in and reads by the DevTools protocol."""

import json
import time

from . import websocket

SECONDS_MAX = 120


class PageError(Exception):
    """A command that the browser refused, or an exception of a script in the page."""


class Page:
    """The first page of the browser that listens at `address` with this WebSocket path."""

    def __init__(self, address, path):
        self.frames = websocket.connect(address, path, "%s:%d" % address)
        self.number, self.session = 0, {}
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        self.call("Page.enable")

    def close(self):
        """Closes the WebSocket, and leaves the browser open."""
        self.frames.stream.close()

    def call(self, method, **parameters):
        """Sends a command and returns its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters, **self.session}
        self.frames.send(websocket.TEXT, json.dumps(message).encode())
        while True:
            opcode, payload = self.frames.receive()
            if opcode == websocket.CLOSE:
                raise EOFError("the browser closed the WebSocket")
            reply = json.loads(payload)
            # The others are events.
            if reply.get("id") != self.number:
                continue
            if "error" in reply:
                raise PageError(f"{method}: {reply['error']['message']}")
            return reply["result"]

    def _run(self, script, **how):
        done = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, userGesture=True, **how
        )
        if "exceptionDetails" in done:
            raised = done["exceptionDetails"]
            text = raised.get("exception", {}).get("description") or raised["text"]
            raise PageError(f"{script[:200]}: {text}")
        return done["result"]

    def evaluate(self, script):
        """Returns the value of an expression in the page; that of a promise once it is there."""
        return self._run(script, returnByValue=True).get("value")

    def wait(self, script):
        """Waits until an expression is true in the page, which may be replaced meanwhile. The time
        only bounds a failure."""
        end, last = time.monotonic() + SECONDS_MAX, None
        while time.monotonic() < end:
            try:
                if self.evaluate(f"!!({script})"):
                    return
            except PageError as error:
                last = error
            time.sleep(0.05)
        shown = self.evaluate("location.href + ' ' + document.body.innerText.slice(0, 2000)")
        raise AssertionError(f"never true: {script[:500]}; last error: {last}; page: {shown}")

    def _wait_loaded(self):
        self.wait("!window.isLeft && document.readyState === 'complete'")

    def open(self, url):
        """Opens a URL and waits until the page and its resources are loaded."""
        self._leave(lambda: self.call("Page.navigate", url=url))

    def reload(self):
        """Reloads the page, as the button of the browser does."""
        self._leave(lambda: self.call("Page.reload"))

    def follow(self, selector):
        """Clicks a link or a button, and waits until the page that it leads to is loaded."""
        self._leave(lambda: self.click(selector))

    def _leave(self, action):
        # The next page has another window, without the mark.
        self.evaluate("window.isLeft = true")
        action()
        self._wait_loaded()

    def click(self, selector):
        """Clicks an element."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector, text):
        """Replaces the text of a field, as if it was typed."""
        self.evaluate(
            f"(field => {{ field.focus(); field.value = {json.dumps(text)};"
            " for (const type of ['input', 'keyup', 'change'])"
            " field.dispatchEvent(new Event(type, {bubbles: true}));"
            f" }})(document.querySelector({json.dumps(selector)}))"
        )

    def choose_file(self, selector, path):
        """Chooses the file of an upload field."""
        field = self._run(f"document.querySelector({json.dumps(selector)})")["objectId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], objectId=field)
