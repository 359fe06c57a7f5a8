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


GUESSED = """\
import torch
from torch import nn

net = nn.Linear(5, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
usual = None
for x in torch.randn(4, 7, 5):
    loss = net(x).pow(2).mean()
    value = loss.item()
    usual = value if usual is None else 0.9 * usual + 0.1 * value
    if abs(value - usual) > 1e3:
        loss = torch.tensor(0.0, requires_grad=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_loss_made_anew_behind_an_unknown_test_is_no_certain_fault(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(GUESSED, encoding="utf-8")
    assert not examine(script, Settings()).diagnoses
