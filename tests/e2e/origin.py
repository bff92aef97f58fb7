"""A server of files that misbehaves as it is told: it stalls, cuts, lies about lengths, changes files, sends elsewhere."""
import http.server
import re
import ssl
import threading


class Origin:
    def __init__(self, pair=None):
        """pair: a certificate and its key, for https."""
        self.files, self.tags, self.ways, self.asked = {}, {}, {}, []
        self.go = threading.Event()  # what is held goes on
        origin = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                origin.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if pair:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.cert, pair.key)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"http{'s' if pair else ''}://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def put(self, name, data, tag=None, ways=()):
        """A file under /name, and how the first requests for it go; the last way stays, none is a good answer."""
        self.files[name], self.tags[name], self.ways[name] = data, tag or f'"{len(data)}"', list(ways)
        return f"{self.url}/{name}"

    def ranges(self, name):
        """The Range of each request for a file; None = all of it."""
        return [h.get("Range") for n, h in self.asked if n == name]

    def answer(self, h):
        name = h.path.lstrip("/")
        self.asked.append((name, dict(h.headers)))
        if name not in self.files:
            return self.reply(h, 404, b"<html>no such file</html>")
        ways = self.ways[name]
        way = ways[0] if len(ways) == 1 else ways.pop(0) if ways else "good"
        data = self.files[name]
        if way == "stall":
            self.head(h, 200, len(data))
            h.wfile.write(data[:len(data) // 2])
            h.wfile.flush()
            self.go.wait(120)
            h.close_connection = True
        elif way == "held":
            self.head(h, 200, len(data), tag=self.tags[name])
            h.wfile.write(data[:len(data) // 2])
            h.wfile.flush()
            self.go.wait(120)
            h.wfile.write(data[len(data) // 2:])
        elif way == "cut":
            self.head(h, 200, len(data), tag=self.tags[name])
            h.wfile.write(data[:len(data) // 2])
            h.close_connection = True
        elif way == "too long":
            self.head(h, 200, len(data) + 1000, tag=self.tags[name])
            h.wfile.write(data)
            h.close_connection = True
        elif way == "too short":
            self.head(h, 200, len(data) // 2, tag=self.tags[name])
            h.wfile.write(data)
            h.close_connection = True
        elif way == "endless":
            self.head(h, 200, 1 << 60)
            h.wfile.write(data[:100])
            h.close_connection = True
        elif way == "other part":
            self.reply(h, 206, data[10:], extra={"Content-Range": f"bytes 10-{len(data) - 1}/{len(data)}"})
        elif way == "no ranges":
            self.reply(h, 200, data)
        elif way == "busy":
            self.reply(h, 429, b"", extra={"Retry-After": "3600"})
        elif isinstance(way, str) and way.startswith("babble "):
            self.babble(h, int(way[7:]))
        elif isinstance(way, int):
            self.reply(h, way, b"<html>a page</html>")
        elif way.startswith("to "):
            self.reply(h, 302, b"", extra={"Location": way[3:]})
        else:
            self.good(h, name, data, heed=way != "heedless")

    def good(self, h, name, data, heed):
        m = re.fullmatch(r"bytes=(\d+)-", h.headers.get("Range", ""))
        if m and (not heed or h.headers.get("If-Range", self.tags[name]) == self.tags[name]):
            first = int(m[1])
            if first >= len(data):
                return self.reply(h, 416, b"", extra={"Content-Range": f"bytes */{len(data)}"})
            return self.reply(h, 206, data[first:], extra={"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}", "ETag": self.tags[name]})
        self.reply(h, 200, data, extra={"ETag": self.tags[name]})

    def head(self, h, status, length, tag=None):
        h.send_response(status)
        h.send_header("Content-Length", str(length))
        if tag:
            h.send_header("ETag", tag)
        h.end_headers()

    def reply(self, h, status, data, extra={}):
        h.send_response(status)
        h.send_header("Content-Length", str(len(data)))
        for k, v in extra.items():
            h.send_header(k, v)
        h.end_headers()
        h.wfile.write(data)

    def babble(self, h, status):
        """A page without an end, until the client leaves."""
        h.send_response(status)
        h.send_header("Location", f"{self.url}/elsewhere")
        h.end_headers()
        h.close_connection = True
        try:
            while not self.go.wait(0.01):
                h.wfile.write(b"<p>wait</p>" * 1000)
        except OSError:
            pass

    def close(self):
        self.go.set()
        self.server.shutdown()
        self.server.server_close()
