"""examine: of the cures of a fault that the text shows, the first is one after which it does not."""

from gradfix.examine import examine
from gradfix.result import Settings

CARRIED = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 1)
        self.hidden = (torch.randn(1, 16, 8), torch.randn(1, 16, 8))

    def forward(self, x):
        out, self.hidden = self.lstm(x, self.hidden)
        return torch.sigmoid(self.last(out[:, -1, :]))


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
shown = 0.0
for epoch in range(1001):
    optimizer.zero_grad()
    loss = nn.functional.binary_cross_entropy(net(torch.randn(16, 5, 4)), torch.rand(16, 1))
    loss.backward()
    optimizer.step()
    shown += loss.item()
    if epoch % 100 == 0:
        print(shown)
        shown = 0.0
        for _ in range(2):
            print(net(torch.randn(16, 5, 4)).data.cpu().numpy()[:, 0].sum())
"""


def test_the_first_help_takes_the_fault_away(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(CARRIED, encoding="utf-8")
    (fault,) = (d for d in examine(script, Settings()).diagnoses if d.conflict.severity != "note")
    assert "self.hidden" in fault.cures[0].summary
