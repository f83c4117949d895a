"""A proxy that is every server it is asked for: it ends TLS with the certificate of its arguments, and answers each
request with the headers that it had, a line each. What it heard is told on standard output, too."""

import http.server
import ssl
import sys

cert, key = sys.argv[1:]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_CONNECT(self):
        self.send_response(200)
        self.end_headers()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        self.connection = context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb")
        self.close_connection = False

    def do_GET(self):
        text = "".join(f"{name}: {value}\n" for name, value in self.headers.items())
        print(f"{self.headers['Host']} {self.headers.get('X-Key')}", flush=True)
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
        self.wfile.flush()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
