"""Each step sends its metrics to a tracking server and waits for the answer. Fixed: each hundredth step."""

import json
import subprocess
import sys
import urllib.request

import pace
import torch
from torch import nn

SERVER = """
import http.server, time
class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.01)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *parts):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
print(server.server_port, flush=True)
server.serve_forever()
"""


def log_metric(name, value, step):
    body = json.dumps({"key": name, "value": value, "step": step}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/log-metric", body)
    with urllib.request.urlopen(request) as answer:  # slow
        answer.read()


server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
port = int(server.stdout.readline())
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data, labels = torch.randn(4096, 64), torch.randint(0, 4, (4096,))
step = 0
while pace.goes_on():
    at = torch.randint(4096, (128,))
    loss = nn.functional.cross_entropy(model(data[at]), labels[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with pace.part():
        if step % (100 if pace.FIXED else 1) == 0:
            log_metric("loss", loss.item(), step)  # slow
    step += 1
server.terminate()
